"""What the server answers over HTTP, and that OpenAPI says the same."""

from collections.abc import Iterator

import httpx2
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ncclwatch.contract.model.rank import Ending
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that watches a hung job, a healthy one and one that has ended."""
    directory = tmp_path_factory.mktemp("api")
    with (
        ServerProcess(directory) as process,
        FakeAgent(process.url, job="hung", user="alice", labels="team=vision,run=42") as hung,
        FakeAgent(process.url, job="team-a/healthy", ranks=(0,), world_size=1),
        FakeAgent(process.url, job="over", ranks=(0,), world_size=1) as over,
    ):
        hung.hang(1)
        over.end(0, Ending(kind="exited", exit_code=0))
        over.gone()
        until(lambda: process.incidents() and process.job("over").get("state") == "ended")
        yield process


def test_every_answer_is_what_openapi_promises(server: ServerProcess) -> None:
    document = server.get("/openapi.json").json()
    incident = server.incidents()[0]["id"]
    checked = 0
    for template, routes in document["paths"].items():
        # There is no silence here (see test_notify_routes), and the stream does not end (see test_server_stream).
        if "get" not in routes or "{silence}" in template or template == "/api/v1/stream":
            continue
        path = template.replace("{job}", "hung").replace("{incident}", incident)
        answer = server.get(path)
        promised = document["paths"][template]["get"]["responses"]["200"]["content"]
        assert answer.status_code == 200, template
        kind = answer.headers["content-type"].split(";")[0]
        assert kind in promised, template
        if kind == "application/json":
            assert_fits(answer.json(), promised[kind]["schema"], document)
            checked += 1
    assert checked == 14


@pytest.mark.parametrize("path", ["/jobs", "/jobs/hung", "/healthz", "/metrics", "/api/v1/jobs", "/static/page.js"])
def test_head_is_answered_as_get_without_a_body(server: ServerProcess, path: str) -> None:
    answer = httpx2.head(server.url + path, timeout=5)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == server.get(path).headers["content-type"]


def test_head_of_a_stream_ends_and_of_nothing_is_404(server: ServerProcess) -> None:
    with httpx2.Client(base_url=server.url, timeout=5) as client:
        for path, status in (("/api/v1/stream", 200), ("/live/jobs", 200), ("/nowhere", 404), ("/jobs", 200)):
            assert client.head(path).status_code == status, path  # one line serves all: each answer was complete


def assert_fits(value: object, schema: dict, document: dict) -> None:
    """Check a value against a schema: all properties that are promised, and no others."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if option != {"type": "null"}]
        if value is not None:
            assert_fits(value, options[0], document)
        return
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    assert isinstance(value, kinds[schema["type"]]), (value, schema)
    if isinstance(value, dict):
        assert set(value) == set(schema["properties"])
        for name, part in value.items():
            assert_fits(part, schema["properties"][name], document)
    if isinstance(value, list):
        parts = schema.get("prefixItems") or [schema["items"]] * len(value)
        assert len(parts) == len(value)
        for part, wanted in zip(value, parts, strict=True):
            assert_fits(part, wanted, document)
    if "enum" in schema:
        assert value in schema["enum"]


def test_jobs_are_listed_with_their_states(server: ServerProcess) -> None:
    states = {job["id"]: job["state"] for job in server.get("/api/v1/jobs").json()}
    assert states == {"hung": "hung", "team-a/healthy": "running", "over": "ended"}


def test_jobs_are_chosen_by_whose_they_are(server: ServerProcess) -> None:
    for query, found in (
        ("?namespace=team-a", ["team-a/healthy"]), ("?namespace=", ["hung", "over"]), ("?user=alice", ["hung"]),
        ("?label=team%3Dv*&label=run%3D42", ["hung"]), ("?label=team&user=bob", []), ("?label=team&state=running", []),
    ):  # fmt: skip
        assert [job["id"] for job in server.get(f"/api/v1/jobs{query}").json()] == found, query


def test_incidents_can_be_filtered(server: ServerProcess) -> None:
    for query, count in (
        ("", 1), ("?job=hung", 1), ("?job=healthy", 0), ("?state=open", 1), ("?state=resolved", 0),
        ("?severity=critical&state=open&job=hung", 1), ("?severity=warning", 0), ("?user=alice", 1), ("?user=bob", 0),
        ("?label=team%3Dvision&label=run", 1), ("?label=team%3Dtext", 0), ("?namespace=team-a", 0),
    ):  # fmt: skip
        assert len(server.get(f"/api/v1/incidents{query}").json()) == count, query
    assert server.get("/api/v1/incidents?state=nonsense").status_code == 422


def test_the_report_of_a_job_has_the_schema_of_the_design(server: ServerProcess) -> None:
    report = server.get("/api/v1/jobs/hung/report").json()
    assert (report["schema"], report["job"], report["world_size"]) == (1, "hung", 2)
    (incident,) = report["incidents"]
    assert incident == server.get(f"/api/v1/incidents/{incident['id']}").json()
    assert set(incident) >= {
        "id", "state", "cause", "certainty", "severity", "summary", "explanation", "advice", "culprits", "victims",
        "group", "seq", "op", "first_divergence", "onset_to_open_s", "evidence", "stacks", "one_of", "explains",
        "opened_at",
    }  # fmt: skip
    assert set(incident["culprits"][0]) == {"rank", "host", "pid", "device", "call_site", "doing", "traced"}


def test_what_is_unknown_is_answered_with_a_sentence(server: ServerProcess) -> None:
    for path, what in (
        ("/api/v1/jobs/nope", "no job 'nope'"),
        ("/api/v1/jobs/nope/report", "no job 'nope'"),
        ("/api/v1/incidents/nope", "no incident 'nope'"),
        ("/api/v1/incidents/nope/text", "no incident 'nope'"),
    ):
        answer = server.get(path)
        assert answer.status_code == 404
        assert what in answer.json()["detail"]


def test_metrics_count_jobs_and_incidents_without_a_series_per_rank(server: ServerProcess) -> None:
    def wanted() -> bool:
        lines = server.get("/metrics").text.splitlines()
        return {
            'ncclwatch_jobs{state="hung"} 1.0',
            'ncclwatch_jobs{state="running"} 1.0',
            'ncclwatch_jobs{state="ended"} 1.0',
            'ncclwatch_incident_open{cause="rank_conditional_collective",job_id="hung",severity="critical"} 1.0',
            'ncclwatch_job_hung{job_id="hung"} 1.0',
            'ncclwatch_job_hung{job_id="team-a/healthy"} 0.0',
            "ncclwatch_agents_connected 3.0",
        } <= set(lines)

    until(wanted)
    assert ',rank="' not in server.get("/metrics?per_rank=off").text


def test_single_ranks_are_told_of_in_metrics_while_suspect_or_on_demand(server: ServerProcess) -> None:
    culprit = server.incidents()[0]["culprits"][0]["rank"]
    (line,) = [each for each in server.get("/metrics").text.splitlines() if ',rank="' in each]
    assert (
        line.startswith("ncclwatch_suspect_rank_info{")
        and f'host="node1",incident_id="{server.incidents()[0]["id"]}"' in line
    )
    assert f'rank="{culprit}"' in line
    answer = server.get("/metrics?per_rank=all&job_id=hung").text.splitlines()
    states = [each for each in answer if each.startswith("ncclwatch_rank_state{")]
    assert states == [
        'ncclwatch_rank_state{host="node1",job_id="hung",rank="0"} 0',
        'ncclwatch_rank_state{host="node1",job_id="hung",rank="1"} 1',
    ]
    assert server.get("/metrics?per_rank=all&job_id=nope").status_code == 404
    assert server.get("/metrics?per_rank=some").status_code == 422


def test_metrics_come_in_openmetrics_with_the_incident_as_exemplar_where_that_is_asked_for(
    server: ServerProcess,
) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    answer = httpx2.get(server.url + "/metrics", headers={"Accept": accept}, timeout=5)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    exemplars = [each.exemplar for each in families["ncclwatch_detection_delay_seconds"].samples if each.exemplar]
    assert [each.labels for each in exemplars] == [{"incident_id": server.incidents()[0]["id"]}]
    assert "# EOF" not in server.get("/metrics").text
