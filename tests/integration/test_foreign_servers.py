"""Another user of the machine has the default port, or wants into the server: nothing of the job goes there."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.launch import PROGRAMS
from tests.integration.machine import ALICE, MALLORY, Machine, needs_root

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

TOKEN = "sesame-0123456789abcdef"


@pytest.fixture
def machine() -> Iterator[Machine]:
    needs_root()
    with Machine() as machine:
        yield machine


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Path]:
    """Give a runtime directory, and kill whatever still carries it afterwards."""
    place = tmp_path / "runtime"
    yield place
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            marks = [*process.environ().values(), *process.cmdline()]
            if process.pid != os.getpid() and any(str(place) in mark for mark in marks):
                process.kill()


def hanging(machine: Machine, runtime: Path, **environ: str) -> "subprocess.Popen[str]":
    """Start a job of two ranks that hangs, and return the rank with the terminal."""
    common = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555",
        "NCCLWATCH_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1", **environ,
    }  # fmt: skip
    first, _ = (machine.start(str(PROGRAMS / "hang.py"), RANK=rank, LOCAL_RANK=rank, **common) for rank in ("0", "1"))
    return first


def terminal_until(rank: "subprocess.Popen[str]", words: str) -> str:
    """Return what a rank's terminal shows up to some words."""
    assert rank.stderr is not None
    lines: list[str] = []
    while not any(words in line for line in lines):
        line = rank.stderr.readline()
        assert line, "".join(lines)
        lines.append(line)
    return "".join(lines)


@pytest.mark.parametrize("how", ["listen", "hold"])
def test_another_user_on_the_default_port_hears_nothing_and_the_job_gets_its_verdict(
    machine: Machine, runtime: Path, tmp_path: Path, how: str
) -> None:
    heard = tmp_path / "heard"
    mallory = machine.other_user(MALLORY, how, "127.0.0.1", "8470", str(heard))
    rank = hanging(machine, runtime, NCCLWATCH_TOKEN=TOKEN)
    told = terminal_until(rank, "CRITICAL")
    assert "what listens at http://127.0.0.1:8470" in told
    assert "This job is watched by a server of its own at http://127.0.0.1:" in told
    assert told.count("8470") == 1
    assert mallory.stdin is not None and mallory.stdout is not None
    if how == "hold":
        mallory.stdin.write("\n")
        mallory.stdin.flush()
        assert mallory.stdout.readline() == "all\n"
    assert heard.read_bytes() == b""


@pytest.mark.parametrize("how", ["listen", "hold"])
def test_whoever_takes_the_port_of_a_server_that_run_had_started_hears_nothing(
    machine: Machine, tmp_path: Path, how: str
) -> None:
    heard = tmp_path / "heard"
    mallory = machine.other_user(MALLORY, how, "127.0.0.1", "8471", str(heard))
    url = "http://127.0.0.1:8471"
    told = machine.ends(
        "-m", "ncclwatch", "status", NCCLWATCH_SERVER=url, NCCLWATCH_SERVER_OWN=url, NCCLWATCH_TOKEN=TOKEN
    )
    assert "so nobody can tell" in told.stderr or f"uid {MALLORY}" in told.stderr
    assert heard.read_bytes() == b""
    mallory.kill()


def test_run_watches_with_a_server_of_its_own_that_no_token_of_the_user_opens(machine: Machine, runtime: Path) -> None:
    command = ("torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port=29556")
    done = machine.ends(
        "-m", "ncclwatch", "run", "--on-hang", "abort", "--",
        sys.executable, "-m", *command, str(PROGRAMS / "hang.py"),
        NCCLWATCH_TOKEN=TOKEN, NCCLWATCH_RUNTIME_DIR=str(runtime), OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 70
    assert "rank 1 called barrier at hang.py:16" in " ".join(done.stderr.split())


MASTERS = [("0", "nobody named a server for this job", False), ("1", "is not an ncclwatch server", True)]


@pytest.mark.parametrize(("named", "words", "shown"), MASTERS)
def test_a_token_goes_to_another_host_only_if_that_was_named(
    machine: Machine, runtime: Path, tmp_path: Path, named: str, words: str, shown: bool
) -> None:
    if shutil.which("ip") is None:
        pytest.skip("needs ip of iproute2, for a second machine")
    heard, runtime_dir = tmp_path / "heard", str(runtime)
    with Machine() as head:
        machine.wire_to(head, "10.77.0.1", "10.77.0.2")
        head.other_user(MALLORY, "greet", "10.77.0.2", "8470", str(heard))
        identity = {"job": "j", "server": "http://10.77.0.2:8470", "server_named": named}
        rank = machine.start("-m", "tests.integration.agent_child", runtime_dir, "0", "2", json.dumps(identity))
        machine.start("-m", "ncclwatch_agent", "--runtime-dir", runtime_dir, NCCLWATCH_TOKEN=TOKEN)
        terminal_until(rank, words)
        assert (TOKEN.encode() in heard.read_bytes(), heard.read_bytes() == b"") == (shown, not shown)


def test_the_command_line_asks_nothing_of_another_user_on_the_default_port(machine: Machine, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    machine.other_user(MALLORY, "listen", "127.0.0.1", "8470", str(heard))
    status = machine.ends("-m", "ncclwatch", "status", NCCLWATCH_TOKEN=TOKEN)
    assert status.returncode != 0
    assert f"what listens at http://127.0.0.1:8470 belongs to another user (uid {MALLORY}" in status.stderr
    doctor = machine.ends("-m", "ncclwatch", "doctor", NCCLWATCH_TOKEN=TOKEN)
    assert f"uid {MALLORY}" in doctor.stdout
    assert heard.read_bytes() == b""


def test_a_server_without_a_token_answers_no_other_user(machine: Machine, tmp_path: Path) -> None:
    paths = ("/", "/api/v1/jobs", "/api/v1/incidents", "/metrics", "/openapi.json", "/ws/agent", "/healthz")
    port = serving(machine, tmp_path)
    found = json.loads(machine.ends("-m", "tests.integration.other_user", str(MALLORY), "ask", port, *paths).stdout)
    assert [status for status, _ in found] == [403, 403, 403, 403, 403, 403, 200]
    assert all(f"this connection is of uid {MALLORY}" in body for _, body in found[:-1])
    own = json.loads(machine.ends("-m", "tests.integration.other_user", "0", "ask", port, *paths[1:4]).stdout)
    assert [status for status, _ in own] == [200, 200, 200]


def test_a_server_without_a_token_answers_the_users_it_was_told_of(machine: Machine, tmp_path: Path) -> None:
    port = serving(machine, tmp_path, "--allow-user", str(MALLORY))
    answer = machine.ends("-m", "tests.integration.other_user", str(MALLORY), "ask", port, "/metrics")
    assert json.loads(answer.stdout)[0][0] == 200


def test_a_server_that_one_user_started_for_a_job_refuses_another_even_with_its_token(
    machine: Machine, tmp_path: Path
) -> None:
    port = serving(machine, tmp_path, "--ephemeral", NCCLWATCH_TOKEN=TOKEN)
    answer = machine.ends("-m", "tests.integration.other_user", str(MALLORY), "ask", port, "/api/v1/jobs")
    assert json.loads(answer.stdout)[0][0] == 403
    assert "this connection is of uid" in answer.stdout


@pytest.mark.parametrize(("allowed", "status"), [((), 403), (("--allow-user", "root"), 200)])
def test_root_without_capabilities_is_another_user_to_a_server_without_a_token(
    machine: Machine, allowed: tuple[str, ...], status: int
) -> None:
    options = ("--port", "0", "--ready-fd", "1", "--ephemeral", *allowed)
    server = machine.start("-m", "tests.integration.other_user", str(ALICE), "serve", *options)
    assert server.stdout is not None and server.stderr is not None
    port = server.stdout.readline().strip()
    assert port.isdigit(), server.stderr.read()
    asked = ("ask", port, "/api/v1/jobs", "/healthz")
    done = machine.ends("-m", "tests.integration.other_user", "0", *asked)
    (jobs, body), (health, _) = json.loads(done.stdout)
    assert (jobs, health) == (status, 200)
    assert allowed or "uid 0, which a container that shares this network may be as well" in body
    own = machine.ends("-m", "tests.integration.other_user", str(ALICE), *asked)
    assert json.loads(own.stdout)[0][0] == 200


def serving(machine: Machine, tmp_path: Path, *options: str, **environ: str) -> str:
    """Start a server and return its port."""
    store = ("--store", str(tmp_path / "incidents.db"))
    server = machine.start("-m", "ncclwatch_server", "--port", "0", "--ready-fd", "1", *store, *options, **environ)
    assert server.stdout is not None and server.stderr is not None
    port = server.stdout.readline().strip()
    assert port.isdigit(), server.stderr.read()
    return port
