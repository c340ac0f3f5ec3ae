"""The commands that ask a server, against a real one whose nodes are scripted."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner, Result

from ncclwatch.cli import contributed
from ncclwatch.cli.main import COMMANDS, main
from ncclwatch_server.incidents.capture_file import read
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess

pytestmark = pytest.mark.integration

BIG = 400  # ranks, more than are looked at without being named
TOKEN = "a-token-of-the-tests"


def ask(url: str, *arguments: str, token: str = "") -> Result:
    """Run a command as a user whose environment names nothing of ncclwatch but the token."""
    environ = {name: None for name in os.environ if name.startswith("NCCLWATCH")}
    return CliRunner(env={**environ, "NCCLWATCH_TOKEN": token or None, "COLUMNS": "120"}).invoke(
        main, [*arguments, "--server", url]
    )


def told(url: str, *arguments: str) -> str:
    """Return what a command prints for people, once it has ended well."""
    done = ask(url, *arguments, "--text")
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def said(url: str, *arguments: str) -> dict:
    """Return what a command prints where no terminal is."""
    done = ask(url, *arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, dict[str, FakeAgent]]]:
    """A server with a hung job, one that was hung twice, a big one, and one with a node and ranks missing."""
    with (
        ServerProcess(tmp_path_factory.mktemp("cli")) as process,
        FakeAgent(process.url, job="hung", user="alice", labels="team=vision") as hung,
        FakeAgent(process.url, job="healed", agent="a2") as healed,
        FakeAgent(process.url, job="big", agent="a3", ranks=tuple(range(BIG)), world_size=BIG) as big,
        FakeAgent(process.url, job="half", agent="a4", ranks=(0, 1, 5), world_size=8),
    ):
        healed.hang(0)
        until(lambda: process.job("healed").get("state") == "hung")
        hung.hang(1)
        big.hang(*range(1, BIG))
        until(lambda: process.job("hung").get("state") == "hung" and process.job("big").get("state") == "hung")
        healed.go_on()
        until(lambda: process.job("healed").get("state") == "running", timeout_s=30)
        yield process, {"hung": hung, "healed": healed, "big": big}


@pytest.fixture(scope="module")
def url(agents: tuple[ServerProcess, dict[str, FakeAgent]]) -> str:
    return agents[0].url


def incident_of(url: str, job: str) -> dict:
    (found,) = said(url, "incidents", "--job", job)["incidents"]
    return found


def test_status_shows_jobs_their_hosts_and_open_incidents(url: str) -> None:
    lines = told(url, "status").splitlines()
    assert lines[0].split() == ["JOB", "STATE", "RANKS", "HOSTS", "STEPS", "OPEN", "INCIDENTS"]
    rows = {line.split()[0]: line.split() for line in lines[1:5]}
    assert rows["hung"][:4] == ["hung", "hung", "2/2", "node1"]
    assert rows["big"][:3] == ["big", "hung", "400/400"]
    assert "half: no node speaks for ranks 2-4,6-7 of 0-7" in lines
    assert f"  {incident_of(url, 'hung')['id']}  CRITICAL  hung: rank 0 did not enter all_reduce" in lines


def test_status_of_one_job_is_about_it_alone(url: str) -> None:
    found = said(url, "status", "hung")
    assert [job["id"] for job in found["jobs"]] == ["hung"]
    assert [incident["job"] for incident in found["incidents"]] == ["hung"]
    assert found["jobs"][0]["nodes"][0]["ranks"] == [0, 1], "the server's own answer, whole"


def test_status_of_one_users_jobs_leaves_out_the_others(url: str) -> None:
    found = said(url, "status", "--user", "alice", "--label", "team=vision")
    assert [job["id"] for job in found["jobs"]] == ["hung"]
    assert [incident["job"] for incident in found["incidents"]] == ["hung"]
    assert "no job of this server fits" in told(url, "status", "--namespace", "team-a")
    assert ask(url, "status", "--label", "team=text", "--exit-code").exit_code == 0


@pytest.mark.parametrize(("job", "code"), [("hung", 1), ("healed", 0), ("half", 0)])
def test_status_ends_with_1_where_a_script_wants_to_know_of_a_hang(url: str, job: str, code: int) -> None:
    assert ask(url, "status", job, "--exit-code").exit_code == code
    assert ask(url, "status", job).exit_code == 0


def test_incidents_are_filtered_by_job_cause_state_and_time(url: str) -> None:
    for arguments, jobs in (
        ((), {"hung", "healed", "big"}),
        (("--user", "alice", "--label", "team=vis*", "--label", "team"), {"hung"}),
        (("--label", "team=text"), set()),
        (("--namespace", "team-a"), set()),
        (("--job", "hung"), {"hung"}),
        (("--state", "resolved"), {"healed"}),
        (("--state", "open", "--severity", "critical"), {"hung", "big"}),
        (("--cause", "transport"), set()),
        (("--cause", "rank_conditional_collective", "--since", "1h"), {"hung", "healed", "big"}),
        (("--until", "2020-01-01"), set()),
        (("--since", "2020-01-01", "--until", "2099-01-01", "--job", "big"), {"big"}),
    ):
        found = said(url, "incidents", *arguments)
        assert {incident["job"] for incident in found["incidents"]} == jobs, arguments
        assert found["next"] is None


def test_the_pages_of_incidents_are_the_list(url: str) -> None:
    whole = [incident["id"] for incident in said(url, "incidents")["incidents"]]
    seen, before = [], []
    for _ in range(len(whole)):
        page = said(url, "incidents", "--limit", "1", *before)
        seen += [incident["id"] for incident in page["incidents"]]
        before = ["--before", page["next"]] if page["next"] else []
        assert bool(before) == (len(seen) < len(whole))
    assert seen == whole
    assert f"there are more: add --before {whole[0]}" in told(url, "incidents", "--limit", "1")


def test_incidents_are_listed_with_their_sentence(url: str) -> None:
    shown = " ".join(told(url, "incidents", "--job", "hung").split())
    assert "INCIDENT OPENED STATE JOB" in shown
    assert "open critical hung rank_conditional_collective, PROVEN: rank 0 did not enter all_reduce" in shown


def test_stacks_show_who_stands_where(url: str) -> None:
    shown = told(url, "stacks", "hung")
    assert shown.startswith("job hung: all ranks, on node1, in ")
    assert "  rank 0 at train.py:17 in train(), calling sleep\n" in shown
    assert (
        "rank 1, thread MainThread:\n    all_reduce (torch/distributed/c10d.py:1)\n  > train (user/train.py:17)"
        in shown
    )
    assert "ncclwatch-pulse" not in shown


def test_stacks_are_merged_into_one_tree(url: str) -> None:
    shown = told(url, "stacks", "hung", "--merged")
    assert "  0-1  train (user/train.py:17)\n  0      sleep (torch/distributed/c10d.py:1)\n" in shown
    assert "thread MainThread:" not in shown


def test_diagnose_with_a_job_looks_at_all_its_nodes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ncclwatch_agent.diagnose.command import diagnose

    group = contributed.Commands("ncclwatch", lazy=COMMANDS)
    group.add_command(diagnose)
    monkeypatch.setenv("NCCLWATCH_SERVER", url)
    done = CliRunner().invoke(group, ["diagnose", "--job", "hung"])
    assert (done.exit_code, done.stdout.splitlines()[1:]) == (
        0,
        told(url, "stacks", "hung", "--merged").splitlines()[1:],
    )
    assert json.loads(CliRunner().invoke(group, ["diagnose", "--job", "hung", "--json"]).stdout)["asked"] == [0, 1]
    for arguments in (["--job", "hung", "--pid", "1"], ["--job", "nope"]):
        assert CliRunner().invoke(group, ["diagnose", *arguments]).exit_code == 2


def test_stacks_of_named_ranks_only(url: str) -> None:
    found = said(url, "stacks", "big", "--rank", "7-9,3")
    assert found["asked"] == [3, 7, 8, 9]
    assert found["stacks"][0]["ranks"] == [3, 7, 8, 9]
    assert found["hosts"] == [{"host": "node1", "ranks": [3, 7, 8, 9]}]


def test_of_a_big_job_suspects_and_a_sample_are_looked_at_and_the_odd_one_is_first(url: str) -> None:
    found = said(url, "stacks", "big")
    assert len(found["asked"]) <= 64
    assert "of open incidents" in found["chosen"]
    assert (found["places"][0]["ranks"], found["places"][0]["odd"]) == ([0], True)
    assert "rank 0 at train.py:17 in train(), calling sleep  (differs from the others)" in told(url, "stacks", "big")


def test_native_frames_are_asked_for_deeply_and_of_few(agents: tuple[ServerProcess, dict[str, FakeAgent]]) -> None:
    process, known = agents
    before = len(known["big"].commands)
    found = said(process.url, "stacks", "big", "--native")
    deep = [command.ranks for command in known["big"].commands[before:] if command.deeply]
    assert deep == [(0,)], "the culprit of the open incident"
    assert any("no native frames of rank 0" in note for note in found["notes"])
    done = ask(process.url, "stacks", "big", "--native", "--rank", "0-16")
    assert done.exit_code == 2
    assert "native frames of 17 ranks were asked for" in done.stderr


def test_ranks_that_cannot_be_asked_are_told_with_the_reason(url: str) -> None:
    found = said(url, "stacks", "half")
    assert found["unseen"] == [{"ranks": [2, 3, 4, 6, 7], "why": "no node speaks for it"}]
    assert "no stack of ranks 2-4,6-7: no node speaks for it" in told(url, "stacks", "half")


def test_what_is_unknown_is_told_with_what_to_type(url: str) -> None:
    for arguments, sentence in (
        (("stacks", "nope"), "knows no job 'nope'; name one of: "),
        (("stacks",), "4 jobs report to the server at"),
        (("stacks", "hung", "--rank", "2"), "job 'hung' has no rank 2; name ranks of 0-1"),
        (("status", "nope"), "knows no job 'nope'"),
        (("report", "nope"), "no incident 'nope' is known to this server; `ncclwatch incidents` lists all"),
        (("incidents", "--before", "nope"), "no incident 'nope' is known any more"),
    ):
        done = ask(url, *arguments)
        assert (done.exit_code, done.stdout) == (2, ""), arguments
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_one_incident_as_every_form_of_report(url: str, tmp_path: Path) -> None:
    incident = incident_of(url, "hung")["id"]
    assert json.loads(ask(url, "report", incident, "--json").stdout) == incident_of(url, "hung")
    assert "ncclwatch: CRITICAL rank 0 did not enter all_reduce\n  why" in ask(url, "report", incident, "--text").stdout
    assert ask(url, "report", incident, "--md").stdout.startswith("## CRITICAL rank 0 did not enter all\\_reduce\n")
    page = tmp_path / "incident.html"
    done = ask(url, "report", incident, "-o", str(page))
    assert (done.exit_code, done.stdout) == (0, "")
    assert page.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [page], "no draft is left behind"


def test_a_saved_report_needs_no_server(url: str, tmp_path: Path) -> None:
    saved = tmp_path / "hang.json"
    saved.write_bytes(httpx2.get(f"{url}/api/v1/jobs/hung/report").content)
    nobody = "http://127.0.0.1:9"
    assert "rank 0 did not enter" in ask(nobody, "report", str(saved), "--md").stdout
    incident = incident_of(url, "hung")["id"]
    assert json.loads(ask(nobody, "report", f"{saved}:{incident}").stdout)["id"] == incident
    done = ask(nobody, "report", f"{saved}:other", "--html", "-o", str(tmp_path / "x.html"))
    assert done.exit_code == 2
    assert f"holds no incident 'other'; name one of: {incident}" in done.stderr
    assert list(tmp_path.iterdir()) == [saved]


def test_top_prints_a_line_of_json_for_each_picture(url: str) -> None:
    done = ask(url, "top", "--count", "2", "--interval", "0.2")
    pictures = [json.loads(line) for line in done.stdout.splitlines()]
    assert [sorted(job["id"] for job in picture["jobs"]) for picture in pictures] == [
        ["big", "half", "healed", "hung"]
    ] * 2


def test_a_shell_completes_jobs_and_incidents(url: str) -> None:
    for words, wanted in (("ncclwatch stacks h", {"plain,half", "plain,healed", "plain,hung"}),):
        environ = {
            **os.environ, "_NCCLWATCH_COMPLETE": "bash_complete", "COMP_CWORD": "2", "COMP_WORDS": words,
            "NCCLWATCH_SERVER": url,
        }  # fmt: skip
        run = "from ncclwatch.cli.main import main; main(prog_name='ncclwatch')"
        done = subprocess.run(
            [sys.executable, "-c", run], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert set(done.stdout.split()) == wanted, done.stderr


def test_a_page_of_another_origin_may_not_ask_for_stacks(url: str) -> None:
    there = f"{url}/api/v1/jobs/hung/stacks"
    assert httpx2.post(there, json={}, headers={"Origin": "http://evil.example"}).status_code == 403
    assert httpx2.post(there, json={}, headers={"Origin": url}).status_code == 200


def test_a_third_reader_waits_and_a_broken_line_answers_the_others(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as process, FakeAgent(process.url) as agent:
        agent.answers_stacks = False
        agent.hang(1)
        until(lambda: process.job().get("state") == "hung")
        there = f"{process.url}/api/v1/jobs/job/stacks"
        answers: list[httpx2.Response] = []
        readers = [
            threading.Thread(target=lambda: answers.append(httpx2.post(there, json={}, timeout=60))) for _ in range(3)
        ]
        for reader in readers:
            reader.start()
        until(lambda: answers)
        assert answers[0].status_code == 429
        assert "2 others are looking at the stacks of job 'job'" in answers[0].json()["detail"]
        agent.leave()
        for reader in readers:
            reader.join(30)
        whys = [unseen["why"] for answer in answers[1:] for unseen in answer.json()["unseen"]]
        assert whys == ["the connection to its agent broke before it answered"] * 2
        done = ask(process.url, "stacks")
        assert "its agent on node1 is not connected" in done.stdout
        assert [(each["ranks"], each["words"]) for each in json.loads(done.stdout)["recorded"]] == [
            ([0], "at train.py:17 in train()"),
            ([1], "in all_reduce at train.py:17 in train()"),
        ]
        shown = ask(process.url, "stacks", "--text").stdout
        assert "  by its own record rank 1 is in all_reduce at train.py:17 in train()\n" in shown


def test_a_protected_server_answers_nobody_without_its_token(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, token=TOKEN) as process, FakeAgent(process.url, token=TOKEN):
        until(lambda: process.job().get("ranks_seen") == 2)
        assert httpx2.post(f"{process.url}/api/v1/jobs/job/stacks", json={}).status_code == 401
        for command in ("status", "top", "stacks", "incidents"):
            done = ask(process.url, command)
            assert (done.exit_code, done.stdout) == (2, "")
            assert "wants a token; set NCCLWATCH_TOKEN" in done.stderr
            assert "does not take this token" in ask(process.url, command, token="wrong").stderr
        assert ask(process.url, "stacks", token=TOKEN).exit_code == 0


def test_a_capture_is_one_file_that_leads_to_the_same_verdict(url: str, tmp_path: Path) -> None:
    done = ask(url, "capture", "hung", "--output", str(tmp_path / "hung.zip"))
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"read it with ncclwatch analyze {tmp_path}/hung.zip" in done.stdout
    with (tmp_path / "hung.zip").open("rb") as file:
        found = read(file)
    saved = json.loads(ask(url, "report", found.report.incidents[0].id, "--json").stdout)
    assert saved["summary"] == found.report.incidents[0].summary
    again = CliRunner().invoke(main, ["analyze", "--json", str(tmp_path / "hung.zip")])
    assert again.exit_code == 0
    assert [each["summary"] for each in json.loads(again.stdout)["incidents"]] == [saved["summary"]]


def test_of_a_job_that_runs_well_a_capture_has_what_its_ranks_recorded(url: str, tmp_path: Path) -> None:
    assert ask(url, "capture", "half", "--output", str(tmp_path / "half.zip")).exit_code == 0
    with (tmp_path / "half.zip").open("rb") as file:
        found = read(file)
    assert found.snapshot.job == "half"
    assert found.snapshot.ranks
    assert any("no stack of rank 2: no node speaks for it" in note for note in found.notes)


@pytest.mark.parametrize("within_s", [True, 0, -1, 1e9, "5", None])
def test_a_capture_is_waited_for_no_other_time_than_one_that_is_a_number(url: str, within_s: object) -> None:
    assert httpx2.post(f"{url}/api/v1/jobs/hung/capture", json={"within_s": within_s}).status_code == 422


@pytest.mark.parametrize(
    ("named", "why"),
    [
        (("nope",), "knows no job 'nope'; name one of: "),
        (("hung", "--output", "/nowhere/x.zip"), "cannot write the capture to /nowhere/x.zip"),
        (("hung", "--output", "/"), "it is a directory; name a file with --output"),
    ],
)
def test_a_capture_that_cannot_be_is_one_sentence(url: str, named: tuple[str, ...], why: str) -> None:
    done = ask(url, "capture", *named)
    assert done.exit_code == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unreachable_server_and_a_stranger_are_one_sentence() -> None:
    for command in ("status", "top", "stacks", "incidents"):
        done = ask("http://127.0.0.1:9", command)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "start ncclwatch-server there, or name another" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_an_unknown_flag_is_one_message() -> None:
    done = ask("", "status", "--bogus")
    assert done.exit_code == 2
    assert "No such option" in done.stderr


def test_an_answer_that_names_another_address_shows_the_token_to_nobody_there() -> None:
    asked: list[str] = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    class SendsOn(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{other.server_port}{self.path}")
            self.end_headers()

    with (
        http.server.HTTPServer(("127.0.0.1", 0), Other) as other,
        http.server.HTTPServer(("127.0.0.1", 0), SendsOn) as first,
    ):
        threads = [threading.Thread(target=each.serve_forever, args=(0.05,)) for each in (other, first)]
        for thread in threads:
            thread.start()
        done = ask(f"http://127.0.0.1:{first.server_port}", "status", token=TOKEN)
        for each, thread in zip((other, first), threads, strict=True):
            each.shutdown()
            thread.join()
    assert asked == []
    assert "names another address (302), which was not asked" in done.stderr
