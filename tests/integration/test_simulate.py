"""`ncclwatch simulate`: jobs that were never run, through a real server's WebSocket and in the judge alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ncclwatch_server.simulation.command import simulate

pytestmark = pytest.mark.integration

LAYOUT = ("--layout", "tp=2,pp=2,dp=4")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Start a real server, and return its address."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    command = [sys.executable, "-m", "ncclwatch_server", "--port", "0", "--store", str(tmp_path / "i.db")]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        yield process.stderr.readline().split()[-1]
        process.terminate()


def run(*arguments: str) -> tuple[int, dict]:
    """Return the exit code and what was said."""
    done = CliRunner().invoke(simulate, [*LAYOUT, *arguments, "--json"])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("fault", ["killed", "skip"])
def test_a_real_server_names_the_rank_that_goes_wrong(server: str, fault: str) -> None:
    code, said = run("--fault", fault, "--after", "3", "--step", "0.5", "--server", server)
    assert (code, said["right"], said["culprits"]) == (0, True, [said["rank"]])
    assert said["nodes"] == 2
    assert said["onset_to_verdict_s"] > 0


def test_a_job_stays_as_long_as_it_was_asked_to_though_the_verdict_has_come(server: str) -> None:
    code, said = run("--fault", "skip", "--after", "2", "--for", "20", "--step", "0.5", "--server", server)
    assert (code, said["right"]) == (0, True)
    assert said["wall_s"] >= 20


def test_a_job_that_would_end_before_its_fault_is_refused() -> None:
    done = CliRunner().invoke(simulate, [*LAYOUT, "--fault", "stuck", "--after", "20", "--for", "10"])
    assert done.exit_code == 2
    assert "--for 10 ends the job before its fault" in done.output


@pytest.mark.long
def test_a_real_server_names_a_slow_rank_and_why(server: str) -> None:
    arguments = "--fault slow:data_loading --after 3 --step 0.25 --server".split()
    code, said = run(*arguments, server)
    assert (code, said["right"], said["culprits"]) == (0, True, [said["rank"]])
    assert "waits for its data loader" in said["said"]


@pytest.mark.parametrize("fault", ["slow", "slow:cpu_steal:0.3"])
def test_a_slow_rank_is_named_without_a_server(fault: str) -> None:
    code, said = run("--fault", fault, "--after", "30")
    assert (code, said["right"], said["culprits"]) == (0, True, [said["rank"]])


def test_the_same_job_is_judged_faster_than_its_seconds_pass() -> None:
    code, said = run("--fault", "stuck", "--after", "30")
    assert (code, said["right"], said["culprits"]) == (0, True, [said["rank"]])
    assert said["onset_to_verdict_s"] <= 12
    again = run("--fault", "stuck", "--after", "30")[1]
    assert {**again, "wall_s": 0} == {**said, "wall_s": 0}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_healthy_job_that_pauses_now_and_then_raises_no_alarm(seed: int) -> None:
    code, said = run("--for", "60", "--seed", str(seed))
    assert (code, said["said"]) == (0, "")


def test_a_server_that_is_not_there_and_a_layout_that_cannot_be_are_told_in_a_sentence() -> None:
    away = CliRunner().invoke(simulate, [*LAYOUT, "--server", "http://127.0.0.1:9", "--for", "1"])
    assert away.exit_code == 2
    assert "no connection of simulated node" in away.output
    wrong = CliRunner().invoke(simulate, ["--layout", "dp=6,ep=4"])
    assert wrong.exit_code == 2
    assert "does not divide" in wrong.output
    fewer = CliRunner().invoke(simulate, [*LAYOUT, "--ranks", "8"])
    assert "leave one of them out" in fewer.output
