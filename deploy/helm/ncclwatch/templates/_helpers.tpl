{{- define "ncclwatch.fullname" -}}
{{- if contains "ncclwatch" .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-ncclwatch" .Release.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ncclwatch.selector" -}}
app.kubernetes.io/name: ncclwatch
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "ncclwatch.labels" -}}
{{ include "ncclwatch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "ncclwatch.secret" -}}
{{ .Values.auth.existingSecret | default (printf "%s-server" (include "ncclwatch.fullname" .)) }}
{{- end }}

{{- define "ncclwatch.scheme" -}}
{{ if .Values.tls.secretName }}https{{ else }}http{{ end }}
{{- end }}

{{- define "ncclwatch.address" -}}
{{ include "ncclwatch.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- end }}

{{- define "ncclwatch.image" -}}
{{ $tag := .Values.image.tag | default .Chart.AppVersion }}{{ required "image.repository is not set, and no image is published: build one (docker build -f deploy/container/Dockerfile -t REGISTRY/ncclwatch:VERSION .), push it, and add --set image.repository=REGISTRY/ncclwatch" .Values.image.repository }}{{ hasPrefix "sha256:" $tag | ternary "@" ":" }}{{ $tag }}
{{- end }}

{{- define "ncclwatch.hasAgentTokens" -}}
{{ if or .Values.auth.existingSecret .Values.jobs.namespaces }}yes{{ end }}
{{- end }}

{{- define "ncclwatch.notifySecret" -}}
{{- if .Values.alerts.existingSecret }}{{ .Values.alerts.existingSecret }}
{{- else if .Values.alerts.notify }}{{ include "ncclwatch.fullname" . }}-alerts
{{- end }}
{{- end }}

{{- /* The token in a Secret, by its base64; another one where that has no token of ours: who may write there could write anything. */ -}}
{{- define "ncclwatch.token" -}}
{{- $known := . | default "" | toString | b64dec -}}
{{ regexMatch "^[A-Za-z0-9]{48}$" $known | ternary $known (randAlphaNum 48) }}
{{- end }}

{{- /* What changes when tokens do: they are read at start. */ -}}
{{- define "ncclwatch.tokensKnown" -}}
{{- $found := list (lookup "v1" "Secret" .Release.Namespace (include "ncclwatch.secret" .)).data -}}
{{- range .Values.jobs.namespaces }}{{ $found = append $found (lookup "v1" "Secret" . $.Values.jobs.secretName).data }}{{ end -}}
{{ $found | toJson }}
{{- end }}
