"""The shipped Helm chart, rendered by Helm's own engine: what it makes is valid, and its parts fit together."""

import base64
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from sqlalchemy import make_url

from ncclwatch.contract import config
from ncclwatch.contract.network import tokens
from ncclwatch.contract.version import VERSION
from ncclwatch_server.__main__ import main as server_command
from tests.integration.helm_chart import CHART, EXAMPLES, NAMESPACE, RELEASE, Document, Values, objects, server_of, the

ROOT = Path(__file__).parents[3]
IMAGE = {"image": {"repository": "registry.example/ncclwatch"}}
OLDEST, NEWEST = "1.25", "1.37"  # of Kubernetes
CRDS = {"ServiceMonitor", "PrometheusRule"}

SWITCHES: tuple[Values, ...] = (
    {"jobs": {"namespaces": ["team-a", "team-b"]}},
    {"auth": {"existingSecret": "tokens-of-ours"}},
    {"tls": {"secretName": "certificate"}},
    {"alerts": {"notify": "[[webhook]]\n"}},
    {"ingress": {"enabled": True, "host": "watch.example.com", "className": "nginx", "tlsSecret": "front"}},
    {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    {"networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]}},
    {"server": {"logUrl": "https://logs.example.com/?q={job}&from={from_s}", "trustedProxies": ["10.0.0.0/8"],
                "extraArgs": ["--keep-incidents=100"], "extraEnv": [{"name": "TZ", "value": "UTC"}],
                "tolerations": [{"operator": "Exists"}], "nodeSelector": {"pool": "cpu"}, "priorityClassName": "high",
                "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"}, "affinity": {"nodeAffinity": {}}}},
)  # fmt: skip
STORES: tuple[Values, ...] = (
    {},
    {"store": {"persistence": {"enabled": False}}},
    {"store": {"persistence": {"existingClaim": "disk", "storageClass": "fast"}}},
    {"store": {"postgresql": {"enabled": True, "host": "db.example.com", "user": "a b",
                              "passwordSecret": {"name": "database", "key": "word"}}}},
)  # fmt: skip
WHOLE: Values = {name: each for switch in SWITCHES for name, each in switch.items() if name != "auth"} | {
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True},
}


@pytest.fixture(scope="module")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(str(CHART)) as found:
        yield found


def render(chart: helm_python.Chart, *values: Values) -> list[Document]:
    """Return what the chart makes of the values, as `helm install ncclwatch CHART -n watch` does."""
    merged = {name: each for group in (IMAGE, *values) for name, each in group.items()}
    return objects(chart.render(merged, name=RELEASE, namespace=NAMESPACE))


def pod_of(documents: list[Document]) -> Document:
    found: Document = the(documents, "Deployment")["spec"]["template"]
    return found


def test_the_chart_is_of_this_version_and_helm_finds_no_fault_with_it() -> None:
    said = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert said["version"] == said["appVersion"] == VERSION
    assert helm_python.lint(str(CHART))["errors"] == []


def test_every_combination_of_switches_makes_valid_objects_that_refer_to_each_other(chart: helm_python.Chart) -> None:
    valid: set[str] = set()
    for store in STORES:
        for chosen in itertools.product((False, True), repeat=len(SWITCHES)):
            on = [switch for switch, is_on in zip(SWITCHES, chosen, strict=True) if is_on]
            documents = render(chart, store, *on)
            refer(documents, [store, *on])
            for each in documents:
                if each["kind"] in CRDS:
                    continue
                if each["kind"] == "Secret":  # tokens are others each time
                    each["stringData"] = dict.fromkeys(each["stringData"], "word")
                if (text := json.dumps(each, sort_keys=True)) not in valid:
                    valid.add(text)
                    kubernetes_validate.validate(each, NEWEST, strict=True)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_chart_with_everything_is_valid_in_the_oldest_kubernetes_too(chart: helm_python.Chart, version: str) -> None:
    documents = render(chart, WHOLE)
    assert {"Deployment", "Secret", "Service", "Ingress", "NetworkPolicy", "ConfigMap", *CRDS} <= {
        each["kind"] for each in documents
    }
    for each in documents:
        if each["kind"] not in CRDS:
            kubernetes_validate.validate(each, version, strict=True)


def refer(documents: list[Document], values: list[Values]) -> None:
    """Check that names of other objects are those of objects that the chart makes, or that somebody has named."""
    made = {(each["kind"], each["metadata"]["name"]) for each in documents}
    named = json.dumps(values)
    pod, server = pod_of(documents)["spec"], server_of(documents)
    mounted = {each["name"] for each in server["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    for volume in pod["volumes"]:
        for kind, key, source in (
            ("Secret", "secretName", "secret"),
            ("PersistentVolumeClaim", "claimName", "persistentVolumeClaim"),
        ):
            if source in volume:
                name = volume[source][key]
                assert (kind, name) in made or f'"{name}"' in named, name
    service = the(documents, "Service")
    labels = pod_of(documents)["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    for monitor in [each for each in documents if each["kind"] == "ServiceMonitor"]:
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
        assert endpoint["scheme"].upper() == server["livenessProbe"]["httpGet"]["scheme"]
        secret = endpoint["authorization"]["credentials"]["name"]
        assert ("Secret", secret) in made or f'"{secret}"' in named


def test_the_servers_own_command_takes_the_arguments_and_its_files_are_mounted(chart: helm_python.Chart) -> None:
    for store in STORES:
        server = server_of(render(chart, WHOLE, store))
        assert server["command"] == ["ncclwatch-server"]
        context = server_command.make_context("ncclwatch-server", list(server["args"]))
        assert context.params["host"] == "0.0.0.0"
        assert context.params["port"] == server["ports"][0]["containerPort"]
        mounts = [each["mountPath"] for each in server["volumeMounts"]]
        files = [each["value"] for each in server["env"] if each["name"].startswith("NCCLWATCH_")]
        files += [part.partition("=")[2] for part in server["args"] if re.match("--(tls|store=/)", part)]
        assert files
        assert all(any(file.startswith(f"{place}/") for place in mounts) for file in files), files
    assert "--store=postgresql://a%20b@db.example.com:5432/ncclwatch" in server["args"]
    assert make_url(server["args"][2].partition("=")[2]).username == "a b"
    assert {"secretKeyRef": {"name": "database", "key": "word"}} in [each.get("valueFrom") for each in server["env"]]


def test_the_server_has_no_rights_and_writes_to_its_volumes_alone(chart: helm_python.Chart) -> None:
    pod = pod_of(render(chart))["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    allowed = server_of(render(chart))["securityContext"]
    assert allowed == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


def test_each_namespace_gets_a_token_of_its_own_that_the_server_takes_for_that_namespace(
    chart: helm_python.Chart,
) -> None:
    documents = render(chart, {"jobs": {"namespaces": ["team-a", "team-b"]}})
    said = the(documents, "Secret", "ncclwatch-server")["stringData"]
    known = tokens.parse(said["agent-tokens"], "agent-tokens")
    assert [token.bounds.namespaces for token in known] == [("team-a",), ("team-b",)]
    assert len({said["token"], said["viewer-token"], *(token.secret for token in known)}) == 4
    for token in (*known, *tokens.parse(said["token"], ""), *tokens.parse(said["viewer-token"], "")):
        assert tokens.weakness(token) == ""
    for token, namespace in zip(known, ("team-a", "team-b"), strict=True):
        given = the(documents, "Secret", "ncclwatch", namespace)["stringData"]
        assert given == {
            config.ENV_SERVER: "http://ncclwatch.watch.svc:8470",
            config.ENV_AGENT_TOKEN: token.secret,
            config.ENV_NAMESPACE: namespace,
        }


def test_what_a_namespace_writes_into_its_secret_is_taken_for_a_token_or_not_at_all(tmp_path: Path) -> None:
    """At an upgrade the chart reads the Secrets of namespaces, which their users may write."""
    copied = shutil.copytree(CHART, tmp_path / "ncclwatch")
    kept, hostile = "aB3" * 16, "x\n---\nkind: ClusterRoleBinding\n"
    for name, word in (("kept", kept), ("hostile", hostile), ("empty", ""), ("short", "abc")):
        written = base64.b64encode(word.encode()).decode()
        (copied / "templates" / f"{name}.yaml").write_text(
            f'word: {{{{ include "ncclwatch.token" "{written}" | quote }}}}\n'
        )
    with helm_python.Chart.load(str(copied)) as chart:
        made = chart.render(IMAGE, name=RELEASE, namespace=NAMESPACE)
    found = {
        name: yaml.safe_load(made[f"ncclwatch/templates/{name}.yaml"])["word"]
        for name in ("kept", "hostile", "empty", "short")
    }
    assert found.pop("kept") == kept
    assert all(re.fullmatch("[A-Za-z0-9]{48}", word) for word in found.values()), found


@pytest.mark.parametrize("odd", ["123", "true", "null", "1e3"])
def test_names_that_look_like_numbers_stay_names(chart: helm_python.Chart, odd: str) -> None:
    values = {
        "jobs": {"namespaces": [odd], "secretName": odd}, "tls": {"secretName": odd},
        "store": {"persistence": {"existingClaim": odd}}, "alerts": {"existingSecret": odd},
        "ingress": {"enabled": True, "host": "*.example.com", "tlsSecret": odd},
        "serviceMonitor": {"enabled": True, "instance": odd},
        "server": {"podLabels": {"app.kubernetes.io/name": "mine", "a": "b"}, "trustedProxies": ["10.0.0.0/8 # x"]},
    }  # fmt: skip
    made = chart.render({**IMAGE, **values}, name=odd, namespace=NAMESPACE)
    for document in objects(made):
        if document["kind"] not in CRDS:
            kubernetes_validate.validate(document, NEWEST, strict=True)
    secret = the(objects(made), "Secret", odd, odd)
    assert secret["stringData"][config.ENV_NAMESPACE] == odd
    pod = the(objects(made), "Deployment", f"{odd}-ncclwatch")["spec"]["template"]
    assert pod["metadata"]["labels"] == {**pod["metadata"]["labels"], "app.kubernetes.io/name": "ncclwatch", "a": "b"}
    assert "--trusted-proxy=10.0.0.0/8 # x" in pod["spec"]["containers"][0]["args"]


def test_an_image_is_named_by_tag_or_digest(chart: helm_python.Chart) -> None:
    for tag, image in (("", f":{VERSION}"), ("1.2", ":1.2"), ("sha256:abc", "@sha256:abc")):
        made = render(chart, {"image": {"repository": "r/n", "tag": tag}})
        assert server_of(made)["image"] == f"r/n{image}"


def test_rules_and_dashboards_are_the_shipped_ones(chart: helm_python.Chart, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: apt-get install -y --no-install-recommends prometheus"
    documents = render(chart, WHOLE)
    shipped = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    assert len(shipped) == 2
    for path in shipped:
        made = the(documents, "PrometheusRule", f"ncclwatch-{path.stem}")
        assert made["metadata"]["labels"]["release"] == "prometheus"
        assert made["spec"] == yaml.safe_load(path.read_text())
        (tmp_path / path.name).write_text(yaml.safe_dump(made["spec"]))
        done = subprocess.run(
            [promtool, "check", "rules", str(tmp_path / path.name)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
    panels = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))
    maps = [each for each in documents if each["kind"] == "ConfigMap"]
    assert len(maps) == len(panels) == 5
    for path in panels:
        made = the(documents, "ConfigMap", path.stem)
        assert made["data"] == {path.name: path.read_text().rstrip("\n")}
        assert made["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_alerts_link_to_the_address_that_people_open(chart: helm_python.Chart) -> None:
    monitored = {"serviceMonitor": {"enabled": True}}
    named = {"serviceMonitor": {"enabled": True, "instance": "pages.example.com"}}
    ingress = {"ingress": {"enabled": True, "host": "watch.example.com"}}
    for values, instance in (
        ([monitored], "ncclwatch.watch.svc:8470"),
        ([monitored, ingress], "watch.example.com"),
        ([named, ingress], "pages.example.com"),
    ):
        (endpoint,) = the(render(chart, *values), "ServiceMonitor")["spec"]["endpoints"]
        assert endpoint["relabelings"] == [{"targetLabel": "instance", "replacement": instance}]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"image": {"repository": ""}}, "docker build -f deploy/container/Dockerfile"),
        ({"jobs": {"namespaces": ["Team_A"]}}, "/jobs/namespaces/0"),
        ({"jobs": {"namespaces": ["a", "a"]}}, "/jobs/namespaces"),
        ({"ingress": {"enabled": True}}, "ingress.host is not set"),
        ({"store": {"postgresql": {"enabled": True}}}, "store.postgresql.host is not set"),
        ({"store": {"postgresql": {"enabled": True, "host": "db #x"}}}, "/store/postgresql/host"),
        ({"jobs": {"namespaces": ["team-a", "watch"]}}, "jobs.namespaces names watch, where the server is"),
        ({"server": {"replicas": 2}}, "replicas"),
        ({"serviceMonitor": {"enabled": "yes"}}, "/serviceMonitor/enabled"),
    ],
)
def test_wrong_values_are_refused_with_the_name_of_what_is_wrong(
    chart: helm_python.Chart, values: Values, said: str
) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(said)):
        render(chart, values)


def test_every_value_is_in_the_schema_and_the_schema_takes_nothing_else(chart: helm_python.Chart) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())

    def same(part: Mapping[str, Any], values: Mapping[str, Any], where: str) -> None:
        if "properties" not in part:
            return
        assert part["additionalProperties"] is False, where
        assert part["properties"].keys() - {"global"} == values.keys(), where
        for name, each in values.items():
            if isinstance(each, dict):
                same(part["properties"][name], each, f"{where}.{name}")

    same(schema, defaults, "values")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "--set 'jobs.namespaces={team-a,team-b}'"),
        ([{"jobs": {"namespaces": ["team-a"]}}], "- secretRef: {name: ncclwatch}"),
        (
            [{"jobs": {"namespaces": ["a"]}}, {"auth": {"existingSecret": "s"}}],
            "kubectl -n a create secret generic ncc",
        ),
        ([{"store": {"persistence": {"enabled": False}}}], "Incidents are lost when the pod ends"),
        ([{"ingress": {"enabled": True, "host": "h.example", "tlsSecret": "x"}}], "https://h.example"),
    ],
)
def test_the_notes_say_what_to_do_next(chart: helm_python.Chart, values: list[Values], said: str) -> None:
    merged = {name: each for group in (IMAGE, *values) for name, each in group.items()}
    made = chart.render(merged, name=RELEASE, namespace=NAMESPACE)
    notes = made["ncclwatch/templates/NOTES.txt"]
    assert said in notes
    assert "kubectl -n watch get secret" in notes


def pods(document: object, kind: str) -> Iterator[Document]:
    """Yield the specifications of all pods in an object, whatever its kind."""
    if isinstance(document, dict):
        if "containers" in document:
            yield document
        elif kind == "TrainJob" and "numNodes" in document:
            kept = {name: each for name, each in document.items() if name in ("image", "command", "env")}
            yield {"containers": [{"name": "node", **kept, "resources": document["resourcesPerNode"]}]}
        for each in document.values():
            yield from pods(each, kind)
    elif isinstance(document, list):
        for each in document:
            yield from pods(each, kind)


# The label that the controller of each kind gives to the pods of a job, whose value is the name of the job.
JOB_LABELS = {
    "job": "batch.kubernetes.io/job-name",
    "jobset": "jobset.sigs.k8s.io/jobset-name",
    "trainjob": "jobset.sigs.k8s.io/jobset-name",
    "pytorchjob": "training.kubeflow.org/job-name",
    "volcano": "volcano.sh/job-name",
    "rayjob": "ray.io/cluster",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_takes_the_secret_of_the_chart_and_names_its_job_node_and_pod(path: Path) -> None:
    watched = 0
    for document in yaml.safe_load_all(path.read_text()):
        if "/" not in document["apiVersion"] or document["apiVersion"].startswith("batch/"):
            kubernetes_validate.validate(document, NEWEST, strict=True)
        for pod in pods(document, document["kind"]):
            whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
            kubernetes_validate.validate(whole, NEWEST, strict=True)
            (container,) = pod["containers"]
            environ = {each["name"]: each for each in container.get("env", ())}
            if not environ:
                assert container["name"] == "ray-head"  # where no worker runs
                continue
            watched += 1
            assert environ["NCCLWATCH_HOST"]["value"] == "$(NODE_NAME)/$(POD_NAME)"
            assert list(environ).index("NCCLWATCH_HOST") > list(environ).index("NODE_NAME"), "expanded in order"
            label = environ["NCCLWATCH_JOB"]["valueFrom"]["fieldRef"]["fieldPath"]
            assert label == f"metadata.labels['{JOB_LABELS[path.stem]}']"
            taken = [each["secretRef"]["name"] for each in container.get("envFrom", ())]
            named = {name for name, each in environ.items() if "secretKeyRef" in each.get("valueFrom", {})}
            assert taken == ["ncclwatch"] or named == {
                config.ENV_SERVER, config.ENV_AGENT_TOKEN, config.ENV_NAMESPACE,
            }  # fmt: skip
    assert watched


def test_there_is_an_example_for_each_kind() -> None:
    assert {path.stem for path in EXAMPLES} == JOB_LABELS.keys()
