{{- define "ncclwatch.fullname" -}}
{{- if contains "ncclwatch" .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-ncclwatch" .Release.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ncclwatch.selector" -}}
app.kubernetes.io/name: ncclwatch
app.kubernetes.io/instance: {{ .Release.Name }}
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
{{ required "image.repository is not set, and no image is published: build one (docker build -f deploy/container/Dockerfile -t REGISTRY/ncclwatch:VERSION .), push it, and add --set image.repository=REGISTRY/ncclwatch" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "ncclwatch.hasAgentTokens" -}}
{{ if or .Values.auth.existingSecret .Values.jobs.namespaces }}yes{{ end }}
{{- end }}

{{- define "ncclwatch.notifySecret" -}}
{{- if .Values.alerts.existingSecret }}{{ .Values.alerts.existingSecret }}
{{- else if .Values.alerts.notify }}{{ include "ncclwatch.fullname" . }}-alerts
{{- end }}
{{- end }}
