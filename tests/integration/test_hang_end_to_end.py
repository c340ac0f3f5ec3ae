"""Real jobs that hang, watched by the real agent and the real server, in the ways a user meets them."""

import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.integration.real_jobs import (
    DEADLINE_S,
    agents,
    end,
    incidents,
    kill_all,
    mine,
    runtime,
    server,
    torchrun,
    until,
)
from tests.ports import free_port
from tests.zoo import jobs
from tests.zoo.forking.torch_once import forking_torchrun

__all__ = ["runtime"]  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


def test_with_nothing_configured_torchrun_gets_its_verdict_on_the_terminal(runtime: Path):
    job = torchrun(runtime, "hang.py", 2, launcher=jobs.torchrun)
    assert job.stderr is not None and job.stdout is not None
    try:
        lines: list[str] = []
        while not any(line.startswith("  incident") for line in lines):
            line = job.stderr.readline()
            assert line, "the job ended without a verdict"
            lines.append(line)
        until(lambda: agents(runtime))
        job.send_signal(signal.SIGKILL)
        kill_all(runtime, "hang.py")
        rest = job.communicate(timeout=DEADLINE_S)[1]
    finally:
        job.kill()
    text = "".join(lines)
    assert text.count("ncclwatch: CRITICAL") == 1
    assert "rank 1 called barrier at hang.py:16" in " ".join(text.split())
    assert "ncclwatch: CRITICAL" not in rest, "told twice"
    until(lambda: not mine(runtime))
    left = [path for path in runtime.rglob("*") if path.suffix == ".ring"]
    assert left == []


def test_a_job_started_again_by_hand_at_the_same_address_gets_its_verdict_too(runtime: Path, tmp_path: Path):
    at_port, port = str(free_port()), free_port()
    url = f"http://127.0.0.1:{port}"

    def at_one_port(program: Path, count: int, arguments: tuple[str, ...] = ()) -> tuple[str, ...]:
        command = forking_torchrun(program, count, arguments)
        at = command.index("--standalone")
        return (*command[:at], "--master-port", at_port, *command[at + 1 :])

    process = server(port, tmp_path / "incidents.db")
    try:
        first = torchrun(runtime, "hang.py", 2, launcher=at_one_port, NCCLWATCH_SERVER=url)
        (before,) = until(lambda: incidents(url))
        (agent,) = agents(runtime)
        kill_all(runtime, "hang.py")
        first.communicate(timeout=DEADLINE_S)
        until(lambda: _states(url) == ["ended"])
        second = torchrun(runtime, "hang.py", 2, launcher=at_one_port, NCCLWATCH_SERVER=url)
        try:
            after, known = until(lambda: len(found := incidents(url)) == 2 and found)
            assert agents(runtime) == [agent], "the agent of the first run has ended: nothing was shown"
        finally:
            end(second, runtime)
    finally:
        process.kill()
        process.wait()
        kill_all(runtime)
    assert known["id"] == before["id"]
    assert (after["job"], after["where"]) == (before["job"], before["where"])


def test_a_server_restarted_in_mid_hang_knows_the_same_incident(runtime: Path, tmp_path: Path):
    port = free_port()
    url, store = f"http://127.0.0.1:{port}", tmp_path / "incidents.db"
    first = server(port, store)
    job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=url)
    try:
        (before,) = until(lambda: incidents(url))
        first.kill()
        first.wait()
        second = server(port, store)
        try:
            until(lambda: _agents(url) == 1)
            (after,) = until(lambda: [i for i in incidents(url) if i["state"] == "open"])
            # One more round of judging: a second incident would be here by then.
            ticks = _judgements(url)
            until(lambda: _judgements(url) >= ticks + 5)
            assert [incident["id"] for incident in incidents(url)] == [before["id"]]
            assert after["id"] == before["id"]
        finally:
            second.terminate()
            second.wait()
    finally:
        first.kill()
        end(job, runtime)


@pytest.mark.long
def test_a_suspect_is_looked_at_closely_down_to_its_loaders_worker(runtime: Path, tmp_path: Path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    first = server(port, tmp_path / "incidents.db")
    job = torchrun(runtime, "worker_stalls.py", 2, NCCLWATCH_SERVER=url)
    try:
        (found,) = until(
            lambda: [i for i in incidents(url) if any("child" in s["thread"] for s in i["stacks"])],
            seen=lambda: incidents(url),
            within_s=100.0,  # a stall of a loader is waited for longer, and a busy machine is slow to begin
        )
    finally:
        first.kill()
        first.wait()
        end(job, runtime)
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]
    threads = {stack["thread"]: stack for stack in found["stacks"] if 1 in stack["ranks"]}
    (worker,) = [stack for thread, stack in threads.items() if thread.startswith("main of child process")]
    assert "Samples.__getitem__" in [frame["function"] for frame in worker["frames"]]
    assert "1 in a data loader worker_stalls.py:32" in found["where"]


@pytest.mark.long
def test_a_thread_that_an_exception_has_ended_is_named_with_the_rank_that_waits_for_it(runtime: Path, tmp_path: Path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    first = server(port, tmp_path / "incidents.db")
    job = torchrun(runtime, "prefetch_ends.py", 2, NCCLWATCH_SERVER=url)
    try:
        (found,) = until(lambda: incidents(url))
    finally:
        first.kill()
        first.wait()
        end(job, runtime)
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]
    assert "its thread prefetch ended with ValueError: bad sample at prefetch_ends.py:19" in found["summary"]
    assert found["advice"].startswith("Fix the exception that ended the thread prefetch")


def _states(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/api/v1/jobs", timeout=2) as answer:
        return [job["state"] for job in json.load(answer)]


def _metric(url: str, name: str) -> float:
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=2) as answer:
            lines = answer.read().decode().splitlines()
    except (urllib.error.URLError, OSError):
        return 0.0
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def _agents(url: str) -> float:
    return _metric(url, "ncclwatch_agents_connected")


def _judgements(url: str) -> float:
    return _metric(url, "ncclwatch_judgements_total")


def test_an_agent_that_was_killed_is_started_again_by_the_ranks(runtime: Path, tmp_path: Path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    head = server(port, tmp_path / "incidents.db")
    job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=url)
    try:
        (before,) = until(lambda: incidents(url))
        (agent,) = agents(runtime)
        agent.kill()
        until(lambda: any(another.pid != agent.pid for another in agents(runtime)))
        until(lambda: _agents(url) == 1)
        ticks = _judgements(url)
        until(lambda: _judgements(url) >= ticks + 3)
        (after,) = incidents(url)
        assert (after["id"], after["state"]) == (before["id"], "open")
        assert len(agents(runtime)) == 1
    finally:
        head.terminate()
        head.wait()
        end(job, runtime)


def test_without_any_server_training_is_not_disturbed(runtime: Path):
    nobody = f"http://127.0.0.1:{free_port()}"
    job = torchrun(runtime, "plain.py", 2, NCCLWATCH_SERVER=nobody)
    out, err = job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 0, err
    # Two ranks write to one pipe: their lines may run into each other.
    sums = re.findall(r"done (-?\d+\.\d{4})", out)
    assert len(sums) == 2
    assert len(set(sums)) == 1
    until(lambda: not mine(runtime))


def test_the_terminal_is_told_where_a_verdict_would_have_to_come_from(runtime: Path):
    nobody = f"http://127.0.0.1:{free_port()}"
    job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=nobody)
    assert job.stderr is not None
    try:
        line = job.stderr.readline()
        while "ncclwatch" not in line:
            assert line, "the job ended and nobody told that it was not watched"
            line = job.stderr.readline()
        assert nobody in line
        assert "NCCLWATCH_SERVER" in line
    finally:
        end(job, runtime)


def test_many_ranks_that_start_at_once_start_one_agent(runtime: Path):
    nobody = f"http://127.0.0.1:{free_port()}"
    job = torchrun(runtime, "hang.py", 2, launcher=jobs.torchrun, NCCLWATCH_SERVER=nobody)
    try:
        until(lambda: len(list(runtime.rglob("*.ring"))) == 2)
        until(lambda: list(runtime.rglob("agent.json")))
        assert len(agents(runtime)) == 1
    finally:
        end(job, runtime)
