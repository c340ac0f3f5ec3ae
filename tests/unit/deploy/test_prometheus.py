"""The shipped rules, examples and runbooks: they parse, do what their own tests say, and agree with each other."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from ncclwatch_server.metrics import moment
from ncclwatch_server.metrics.families import Families
from ncclwatch_server.store.no_store import NoStore
from tests.unit.server.metrics.test_families import announced, opened, watching

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "prometheus"
RUNBOOKS = ROOT / "docs" / "runbooks"
RULES = sorted((DEPLOY / "rules").glob("*.yml"))
BASE = "https://github.com/ncclwatch/ncclwatch/blob/main/docs/runbooks/"
SEVERITIES = {"critical", "warning", "info", "none"}


def run(tool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a tool of Prometheus; that it is missing is a failure, with what to install."""
    package = "prometheus-alertmanager" if tool == "amtool" else "prometheus"
    path = shutil.which(tool)
    assert path is not None, f"{tool} is missing: apt-get install -y --no-install-recommends {package}"
    return subprocess.run([path, *map(str, arguments)], cwd=DEPLOY, capture_output=True, text=True, timeout=110)


def alerts() -> dict[str, dict]:
    """Return all alerting rules by name."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def test_rules_parse_without_a_warning() -> None:
    done = run("promtool", "check", "rules", "--lint=all", "--lint-fatal", *RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_do_what_their_tests_say() -> None:
    done = run("promtool", "test", "rules", *sorted((DEPLOY / "tests").glob("*.yml")))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("promtool", ("check", "config", "prometheus.yml")),
        ("amtool", ("check-config", "alertmanager.yml")),
        ("amtool", ("check-config", "alertmanager-people.yml")),
    ],
)
def test_examples_of_configuration_are_accepted(tool: str, arguments: tuple[str, ...]) -> None:
    done = run(tool, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_hang_keeps_back_nothing_about_a_job_of_the_same_name_at_another_server() -> None:
    for name in ("alertmanager.yml", "alertmanager-people.yml"):
        settings = yaml.safe_load((DEPLOY / name).read_text())
        assert {"job_id", "instance"} <= set(settings["route"]["group_by"]), name
        assert all({"job_id", "instance"} <= set(rule["equal"]) for rule in settings.get("inhibit_rules", ())), name


def rendered(template: str, tmp_path: Path, **alert: str) -> str:
    """Return what people read of one alert with these annotations."""
    labels = {"severity": "critical"}
    data = {"status": "firing", "commonLabels": labels, "alerts": [{"status": "firing", "annotations": alert}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    text = f'{{{{ template "ncclwatch.{template}" . }}}}'
    glob = "--template.glob=templates/*.tmpl"
    done = run(
        "amtool", "template", "render", glob, f"--template.text={text}", "--template.data", tmp_path / "data.json"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_messages_have_the_sentence_the_advice_the_line_and_the_link(tmp_path: Path) -> None:
    hang = {
        "summary": "Training job llm hangs: rank 2 ran out of batches", "advice": "Give all ranks the same number.",
        "line": "train.py:130 in main()", "incident_url": "http://head:8470/incidents/abc", "runbook_url": "http://r",
    }  # fmt: skip
    assert rendered("title", tmp_path, **hang) == f"CRITICAL {hang['summary']}"
    assert rendered("text", tmp_path, **hang).splitlines() == [
        hang["summary"], "Do: Give all ranks the same number.", "Line: train.py:130 in main()",
        "Incident: http://head:8470/incidents/abc", "Runbook: http://r",
    ]  # fmt: skip
    assert rendered("link", tmp_path, **hang) == hang["incident_url"]
    assert rendered("link", tmp_path, summary="The server does not answer", runbook_url="http://r") == "http://r"


def test_what_a_job_is_called_mentions_nobody_in_a_message(tmp_path: Path) -> None:
    evil = dict.fromkeys(("summary", "advice", "line", "description"), "<!channel> <http://evil.example|x>")
    for template in ("title", "text"):
        assert "<" not in rendered(template, tmp_path, **evil)


def test_each_critical_alert_about_a_job_says_what_to_do_and_where() -> None:
    for name in ("NcclwatchJobHung", "NcclwatchRankLost"):
        assert {"summary", "advice", "line", "incident_url", "runbook_url"} <= set(alerts()[name]["annotations"]), name


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(alerts())


@pytest.mark.parametrize("name", sorted(alerts()))
def test_an_alert_says_how_bad_it_is_and_where_to_read_on(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in SEVERITIES
    assert {"summary", "description", "runbook_url"} <= set(rule["annotations"])
    assert rule["annotations"]["runbook_url"] == f"{BASE}{name}.md"
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert text.startswith(f"# {name}: ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Symptom", "Metric", "Action", "Verification"]


@pytest.mark.parametrize("name", sorted(alerts()))
def test_each_alert_is_in_a_test_of_rules(name: str) -> None:
    tests = "".join(path.read_text() for path in (DEPLOY / "tests").glob("*.yml"))
    assert re.search(rf'alertname(: |="){name}\b', tests)


def test_rules_and_runbooks_speak_of_metrics_that_there_are() -> None:
    watch = watching()
    announced(watch)
    opened(watch)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(moment.take(watch, NoStore(), 100.0, 0.0)))
    told = set(re.findall(r"^# TYPE (\S+)", generate_latest(registry).decode(), re.MULTILINE))
    histograms = {f"{name}{end}" for name in told for end in ("_bucket", "_sum", "_count")}
    texts = [path.read_text() for path in (*RULES, *RUNBOOKS.glob("*.md"))]
    named = {name for text in texts for name in re.findall(r"(?<![:\w])ncclwatch_[a-z_]+[a-z]", text)}
    assert named - told - histograms == set()
