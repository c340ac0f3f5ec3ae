"""`ncclwatch run` with real commands and real servers."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ncclwatch.cli.running import embedded
from tests.integration.fake_agent import until
from tests.integration.server_process import ROOT, ServerProcess

pytestmark = pytest.mark.integration

PYTHON = sys.executable


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


def start(*arguments: str, marker: str = "", **environ: str) -> subprocess.Popen[bytes]:
    """Start `ncclwatch run` in the way a user's shell does."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    return subprocess.Popen(
        [PYTHON, "-m", "ncclwatch", "run", *arguments],
        cwd=ROOT, env={**inherited, **environ, "TEST_MARKER": marker},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def run(*arguments: str, marker: str = "", **environ: str) -> subprocess.CompletedProcess[bytes]:
    with start(*arguments, marker=marker, **environ) as process:
        try:
            output, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def marked(marker: str) -> list[str]:
    """Return the command lines of living processes that inherited a marker."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"TEST_MARKER={marker}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
    ],
)
def test_it_exits_with_the_code_of_the_command(server: ServerProcess, code: str, expected: int) -> None:
    done = run("--server", server.url, "--", PYTHON, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (expected, b"", b"")


def test_the_output_of_the_command_is_untouched(server: ServerProcess) -> None:
    code = "import os; [os.write(fd, bytes(range(256)) * 999 + b'no newline') for fd in (1, 2)]"
    done = run("--server", server.url, "--", PYTHON, "-c", code)
    assert done.stdout == bytes(range(256)) * 999 + b"no newline"
    assert done.stderr == done.stdout


def test_the_command_learns_where_to_report_under_a_fresh_name(server: ServerProcess) -> None:
    code = "import os; print(*[os.environ['NCCLWATCH_' + n] for n in ('SERVER', 'TERMINAL', 'JOB')])"
    first = run("--server", server.url, "--", PYTHON, "-c", code).stdout.decode().split()
    second = run("--server", server.url, "--", PYTHON, "-c", code).stdout.decode().split()
    assert first[:2] == [server.url, "0"]
    assert first[2] != second[2]
    named = run("--server", server.url, "--", PYTHON, "-c", code, NCCLWATCH_JOB="mine").stdout.decode().split()
    assert named[2] == "mine"


def test_a_server_of_its_own_is_started_and_leaves_nothing_behind(tmp_path: Path) -> None:
    report, marker = tmp_path / "report.json", str(tmp_path)
    done = run("--report", str(report), "--", PYTHON, "-c", "raise SystemExit(4)", marker=marker)
    assert (done.returncode, done.stderr) == (4, b"")
    said = json.loads(report.read_bytes())
    assert {**said, "job": ""} == {"schema": 1, "job": "", "world_size": 0, "incidents": []}
    assert marked(marker) == []
    assert list(tmp_path.iterdir()) == [report]


def test_a_report_whose_directory_has_gone_is_printed_instead(server: ServerProcess, tmp_path: Path) -> None:
    place = tmp_path / "reports"
    place.mkdir()
    command = ("--report", str(place / "report.json"), "--server", server.url, "--", "rm", "-rf", str(place))
    done = run(*command, NCCLWATCH_JOB="gone")
    said, _, printed = done.stderr.decode().partition("here it is:\n")
    assert done.returncode == 0
    assert "cannot write the report to " in said and "(No such file or directory)" in said
    assert json.loads(printed)["job"] == "gone"


def test_a_hang_is_told_once_and_aborted_with_everything_it_started(server: ServerProcess, tmp_path: Path) -> None:
    report, marker = tmp_path / "report.json", str(tmp_path)
    arguments = ("--on-hang", "abort", "--report", str(report), "--server", server.url)
    done = run(*arguments, "--", PYTHON, "-m", "tests.integration.fake_job", "stubborn", marker=marker)
    assert done.returncode == 70
    assert done.stdout == b"stubborn\n"
    text = done.stderr.decode()
    assert text.count("ncclwatch: CRITICAL rank 0 did not enter all_reduce") == 1
    assert "ncclwatch report " in text
    (incident,) = json.loads(report.read_bytes())["incidents"]
    assert incident["cause"] == "rank_conditional_collective"
    assert json.loads(report.read_bytes())["world_size"] == 2
    assert marked(marker) == []


def test_without_abort_a_hang_is_told_and_the_command_goes_on(server: ServerProcess, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = ("--", PYTHON, "-m", "tests.integration.fake_job", "recover")
    done = run("--report", str(report), "--server", server.url, *command)
    assert done.returncode == 0
    assert done.stderr.decode().count("ncclwatch: CRITICAL") == 1
    (incident,) = json.loads(report.read_bytes())["incidents"]
    assert incident["state"] == "ended"


def test_a_crash_is_told_after_the_command_has_ended(server: ServerProcess, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = ("--", PYTHON, "-m", "tests.integration.fake_job", "crash")
    done = run("--report", str(report), "--server", server.url, *command)
    assert done.returncode == 1
    assert done.stderr.decode().count("ncclwatch: CRITICAL") == 1
    assert [i["cause"] for i in json.loads(report.read_bytes())["incidents"]] == ["rank_crashed"]


def test_incidents_of_former_jobs_of_the_same_name_are_not_told_again(server: ServerProcess, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    crash = ("--", PYTHON, "-m", "tests.integration.fake_job", "crash")
    assert b"CRITICAL" in run("--server", server.url, *crash, NCCLWATCH_JOB="again").stderr
    done = run("--server", server.url, "--report", str(report), "--", PYTHON, "-c", "pass", NCCLWATCH_JOB="again")
    assert done.stderr == b""
    assert json.loads(report.read_bytes())["incidents"] == []


def test_a_signal_reaches_the_command_and_the_report_is_still_written(server: ServerProcess, tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\n"
        "signal.pause()"
    )
    report = tmp_path / "report.json"
    with start("--server", server.url, "--report", str(report), "--", PYTHON, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 5
    assert json.loads(report.read_bytes())["incidents"] == []


def test_a_report_that_cannot_be_written_is_told_before_the_command_starts(
    server: ServerProcess, tmp_path: Path
) -> None:
    touch = ("--", "touch", str(tmp_path / "started"))
    for path in (tmp_path / "none" / "report.json", tmp_path, Path("/proc/report.json")):
        done = run("--server", server.url, "--report", str(path), *touch)
        assert done.returncode == 2
        assert f"cannot write the report to {path}".encode() in done.stderr
        assert b"--report" in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_report_may_go_into_a_pipe(server: ServerProcess) -> None:
    done = run("--server", server.url, "--report", "/dev/stdout", "--", PYTHON, "-c", "pass")
    assert json.loads(done.stdout)["schema"] == 1
    assert Path("/dev/stdout").exists()


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/hostname", 126)])
def test_a_command_that_cannot_be_started_is_told(
    server: ServerProcess, tmp_path: Path, command: str, code: int
) -> None:
    done = run("--server", server.url, "--report", str(tmp_path / "report.json"), "--", command)
    assert done.returncode == code
    assert f"cannot run {command}".encode() in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_is_told_once_and_the_training_runs(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code = "import time; time.sleep(3); raise SystemExit(6)"  # long enough for a second try
    done = run("--server", "http://127.0.0.1:9", "--report", str(report), "--", PYTHON, "-c", code)
    assert done.returncode == 6
    assert done.stderr.decode().count("no ncclwatch server answers at http://127.0.0.1:9") == 1
    assert json.loads(report.read_bytes())["world_size"] == 0


def test_a_wrong_server_is_told_and_the_training_runs() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        done = run("--server", f"http://127.0.0.1:{other.server_port}", "--", PYTHON, "-c", "raise SystemExit(7)")
        other.shutdown()
    assert done.returncode == 7
    assert b"not an ncclwatch server" in done.stderr


def test_missing_packages_of_the_server_are_told_and_the_training_runs(tmp_path: Path) -> None:
    (tmp_path / "fastapi.py").write_text("raise ModuleNotFoundError('No module named fastapi', name='fastapi')")
    report = tmp_path / "report.json"
    done = run("--report", str(report), "--", PYTHON, "-c", "print('trained')", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, b"trained\n")
    assert b"pip install 'ncclwatch[server]'" in done.stderr
    assert json.loads(report.read_bytes())["incidents"] == []


def test_a_server_that_is_not_ready_in_time_answers_whoever_has_come_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    slow = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
    (tmp_path / "sitecustomize.py").write_text(slow)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(embedded, "READY_S", 0.2)
    with embedded.EmbeddedServer() as server:
        server.start()
        assert (server.ready, server.alive) == (False, True)
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60) as early:
            early.sendall(b"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            go.touch()
            assert b"200 OK" in early.recv(4096)
    assert not server.alive


def test_a_killed_run_takes_its_server_with_it_but_not_the_training(tmp_path: Path) -> None:
    marker = str(tmp_path)
    code = "print('ready', flush=True); import time; time.sleep(60)"
    with start("--", PYTHON, "-c", code, marker=marker) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert any("ncclwatch_server" in line for line in marked(marker))
        process.kill()
        process.wait()
        until(lambda: not any("ncclwatch_server" in line for line in marked(marker)))
        assert any("time.sleep(60)" in line for line in marked(marker))
        os.killpg(process.pid, signal.SIGKILL)


def test_a_command_that_hangs_again_after_a_restart_is_ended(server: ServerProcess, tmp_path: Path) -> None:
    report, marker = tmp_path / "report.json", str(tmp_path)
    arguments = ("--on-hang", "restart", "--report", str(report), "--server", server.url)
    blocked = "print(next(x for x in open('/proc/self/status') if x.startswith('SigBlk')), end='', flush=True)"
    runs = "import runpy\nrunpy.run_module('tests.integration.fake_job', run_name='__main__')"
    job = (PYTHON, "-c", f"{blocked}\n{runs}", "stubborn")
    done = run(*arguments, "--", *job, marker=marker, NCCLWATCH_JOB="hangs-twice")
    assert done.returncode == 70, done.stderr
    first, stubborn, second, again = done.stdout.decode().splitlines()
    assert (stubborn, again) == ("stubborn", "stubborn")
    assert first == second  # a signal that was blocked for the second one would not reach it
    said = [line for line in done.stderr.decode().splitlines() if line.startswith("ncclwatch: ")]
    assert [line.partition(":")[2].split()[0:2] for line in said if "ing the command" in line] == [
        ["ending", "the"], ["starting", "the"], ["ending", "the"],
    ]  # fmt: skip
    assert "it hangs as it did before a restart" in said[-1] or any("as it did before" in line for line in said)
    assert len(json.loads(report.read_bytes())["incidents"]) == 2
    assert marked(marker) == []


def test_a_policy_that_cannot_be_read_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "hangs.toml").write_text("[proven]\nprocess_frozzen = 'restart'\n")
    done = run("--on-hang", "policy", "--policy", str(tmp_path / "hangs.toml"), "--", "touch", str(tmp_path / "begun"))
    assert done.returncode == 2
    assert b"did you mean process_frozen?" in done.stderr
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize(
    ("option", "variable", "heard"),
    [
        ("raise", "", "raise"),
        ("", "raise", "raise"),
        ("abort", "raise", "report"),
        ("", "policy", "report"),
        ("", "", ""),
    ],
)
def test_ranks_hear_of_what_only_they_and_their_agents_can_do(
    server: ServerProcess, option: str, variable: str, heard: str
) -> None:
    code = "import os; print(os.environ.get('NCCLWATCH_ON_HANG', ''))"
    more = {"NCCLWATCH_ON_HANG": variable} if variable else {}
    options = ("--on-hang", option) if option else ()
    done = run(*options, "--server", server.url, "--", PYTHON, "-c", code, **more)
    assert (done.returncode, done.stdout.decode()) == (0, f"{heard}\n")
