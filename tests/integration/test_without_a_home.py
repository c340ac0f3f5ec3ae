"""A user without a home and without an entry in the password file, as in many containers: everything starts."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launch import PROGRAMS

pytestmark = pytest.mark.integration
UID = 1_000_000 + os.getpid()  # nobody's


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    if subprocess.run(["unshare", "--user", f"--map-user={UID}", "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a user namespace: unshare --user fails")


@pytest.fixture
def makeshift() -> Iterator[Path]:
    place = Path(f"/var/tmp/ncclwatch-{UID}")
    yield place
    shutil.rmtree(place, ignore_errors=True)


def command(*arguments: str) -> list[str]:
    return ["unshare", "--user", f"--map-user={UID}", f"--map-group={UID}", sys.executable, "-m", *arguments]


def environment(runtime: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "NCCLWATCH_RUNTIME_DIR": str(runtime),
        "OMP_NUM_THREADS": "1",
    }


def run(runtime: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments), env=environment(runtime), cwd="/", capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--help",), 0, "Find what hung a job"),
        (("doctor",), 1, "native recorder"),
        (("status",), 2, "no ncclwatch server answers"),
        (("silence", "list"), 2, "no ncclwatch server answers"),
        (("config", "show"), 0, "NCCLWATCH_RUNTIME_DIR"),
        (("diagnose",), 2, "no ranks on this node"),
        (("build-native",), 2, "Name a directory in NCCLWATCH_NATIVE_DIR"),
        (("analyze", "/dev/null"), 2, "nothing in /dev/null"),
    ],
)
def test_every_command_works_or_says_in_a_sentence_why_not(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
):
    done = run(tmp_path, "ncclwatch", *arguments)
    assert "Traceback" not in done.stderr
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr


def test_a_training_is_watched_and_told_nothing(tmp_path: Path):
    report = tmp_path / "report.json"
    program = str(PROGRAMS / "until_watched.py")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", program)
    done = run(tmp_path, "ncclwatch", "run", "--report", str(report), "--", *torchrun)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done ") == 2
    assert "ncclwatch:" not in done.stderr
    assert '"world_size":2' in report.read_text().replace(" ", "")


def test_a_server_keeps_its_incidents_in_a_directory_of_its_own_and_says_where(tmp_path: Path, makeshift: Path):
    receive, send = os.pipe()
    with subprocess.Popen(
        command("ncclwatch_server", "--port", "0", "--ready-fd", str(send)), env=environment(tmp_path), cwd="/",
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=(send,),
    ) as process:  # fmt: skip
        os.close(send)
        with os.fdopen(receive) as ready:
            port = ready.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    assert port.strip().isdigit(), said
    assert f"uid {UID} has no home to keep incidents in: they go to {makeshift}" in said
    assert (makeshift / "incidents.db").stat().st_size > 0
    assert makeshift.stat().st_mode & 0o777 == 0o700
