"""The stream of verdicts, and the schema that a fuzzer cannot break: a real server, a real line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess

pytestmark = pytest.mark.integration

# What a schema cannot say: which ranks a job has, and that a silence ends after it has begun. That may be refused.
BY_CONTENT = """
[checks]  # 503: on a busy machine the store may not answer in time, which is said
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]
[[operations]]
include-path = ["/api/v1/silences", "/api/v1/jobs/{job}/stacks", "/api/v1/jobs/{job}/capture"]
[operations.checks]
positive_data_acceptance.enabled = false
"""
FUZZ_S = 15  # of asking; what comes first is the same on a slow machine, and there is less of it


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("stream")
    with ServerProcess(directory, store=f"sqlite:///{directory / 'i.db'}") as process:
        yield process


@contextmanager
def listening(url: str, query: str = "", last: str = "") -> Iterator[Iterator[tuple[str, str, dict]]]:
    """Open the stream; yields (id, event, incident) as they come."""
    headers = {"Last-Event-ID": last} if last else {}
    with httpx2.stream("GET", f"{url}/api/v1/stream{query}", headers=headers, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines).startswith(":")  # from now on nothing is missed
        yield events(lines)


def events(lines: Iterator[str]) -> Iterator[tuple[str, str, dict]]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and not line.startswith(":"):
            fields[name] = value
        elif fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}


def test_a_hang_is_heard_when_it_opens_and_when_it_ends(server: ServerProcess):
    with FakeAgent(server.url, job="heard") as agent, listening(server.url, "?job=heard") as heard:
        agent.hang(1)
        number, event, incident = next(heard)
        assert (event, incident["job"], incident["state"]) == ("opened", "heard", "open")
        assert incident["summary"] == "rank 0 did not enter all_reduce"
        agent.go_on()
        last = next(each for each in heard if each[1] == "closed")
        assert last[2]["id"] == incident["id"]
        assert last[2]["state"] == "resolved"
        assert int(last[0]) > int(number)


def test_who_lost_the_line_gets_what_it_missed_and_nothing_twice(server: ServerProcess):
    with FakeAgent(server.url, job="missed") as agent:
        with listening(server.url, "?job=missed") as heard:
            agent.hang(1)
            first = next(heard)
        agent.go_on()
        until(lambda: [i["state"] for i in server.incidents() if i["job"] == "missed"] == ["resolved"])
        with listening(server.url, "?job=missed", last=first[0]) as heard:
            missed = next(each for each in heard if each[1] == "closed")
            assert int(missed[0]) > int(first[0])


def test_only_what_was_asked_for_is_heard(server: ServerProcess):
    with (
        FakeAgent(server.url, job="one") as one,
        FakeAgent(server.url, job="two", instance="x:1", agent="a2") as two,
        listening(server.url, "?job=two&cause=rank_conditional_collective") as heard,
    ):
        one.hang(1)
        until(lambda: server.job("one").get("state") == "hung")
        two.hang(1)
        assert next(heard)[2]["job"] == "two"


def test_a_stream_that_wants_nonsense_is_refused(server: ServerProcess):
    assert server.get("/api/v1/stream?severity=loud").status_code == 422


def test_incidents_come_in_pages_by_their_link(server: ServerProcess):
    for number in range(3):
        with FakeAgent(server.url, job=f"paged{number}") as agent:
            agent.hang(1)
            until(lambda n=number: server.job(f"paged{n}").get("state") == "hung")
    seen, path = [], "/api/v1/incidents?limit=2"
    while path:
        answer = server.get(path)
        seen += [incident["id"] for incident in answer.json()]
        assert len(answer.json()) <= 2
        path = answer.links["next"]["url"] if "next" in answer.links else ""
    assert seen == [incident["id"] for incident in server.incidents()]
    assert len(seen) == len(set(seen)) >= 3


def test_incidents_are_filtered_by_cause_and_time(server: ServerProcess):
    with FakeAgent(server.url, job="timed") as agent:
        agent.hang(1)
        until(lambda: server.job("timed").get("state") == "hung")
        (incident,) = server.get("/api/v1/incidents?job=timed").json()
        opened = incident["opened_at"].replace("+", "%2B")
        for query, count in (
            ("&cause=rank_conditional_collective", 1), ("&cause=data_stall", 0), (f"&since={opened}", 1),
            (f"&until={opened}", 0), ("&since=2100-01-01T00:00:00Z", 0), ("&until=2100-01-01T00:00:00Z", 1),
        ):  # fmt: skip
            assert len(server.get(f"/api/v1/incidents?job=timed{query}").json()) == count, query


def test_a_job_with_a_slash_in_its_name_can_be_asked_for(server: ServerProcess):
    with FakeAgent(server.url, job="team/run 1") as agent:
        until(lambda: agent.progress > 2)
        assert server.get("/api/v1/jobs/team%2Frun%201").json()["id"] == "team/run 1"
        assert server.get("/api/v1/jobs/team%2Frun%201/report").json()["job"] == "team/run 1"
        assert [row["rank"] for row in server.get("/api/v1/jobs/team%2Frun%201/ranks").json()["ranks"]] == [0, 1]
        page = server.get("/api/v1/jobs/team%2Frun%201/ranks?first=1&limit=1").json()
        assert ([row["rank"] for row in page["ranks"]], page["next"]) == ([1], None)


def test_a_fuzzer_of_schemas_finds_no_error_and_no_broken_promise(server: ServerProcess, tmp_path: Path):
    """The stream is left out: it does not end."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(BY_CONTENT)
    with FakeAgent(server.url, job="fuzzed") as agent:
        agent.hang(1)
        until(lambda: server.job("fuzzed").get("state") == "hung")
        done = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--max-examples", "3",
                "--seed", "1", "--exclude-path", "/api/v1/stream", "--phases", "coverage,fuzzing", "--no-color",
                "--max-time", str(FUZZ_S),
            ],
            cwd=config.parent, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:] + server.log.read_text()[-4000:]
        assert server.get("/healthz").status_code == 200
