"""Real trainers of Ray: hangs are explained and restarted, and the end of a healthy one is no crash."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.real_jobs import incidents, running, runtime, server, until
from tests.ports import free_port

__all__ = ["runtime"]

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None or os.environ.get("FRAMEWORKS") != "all", reason="needs ray[train]: make frameworks"
)
pytestmark = [pytest.mark.timeout(300), needs_ray]
PROGRAM = Path(__file__).parent / "programs/ray_trains.py"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    watching = server(port, tmp_path / "incidents.db")
    yield f"http://127.0.0.1:{port}"
    watching.kill()
    watching.wait()


def run(runtime: Path, directory: Path, url: str, how: str, on_hang: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a trainer of Ray, with a cluster of its own, to its end."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NCCLWATCH_", "RAY_"))}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short:  # sockets lie in it
        own = {
            "NCCLWATCH_RUNTIME_DIR": str(runtime), "NCCLWATCH_SERVER": url, "NCCLWATCH_ON_HANG": on_hang,
            "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": short,
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, str(PROGRAM), str(directory), how], env=inherited | own, timeout=240, check=False,
            text=True, capture_output=True,
        )  # fmt: skip


def through(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("through*"))


def test_the_end_of_a_healthy_trainer_is_no_crash(runtime: Path, tmp_path: Path, url: str) -> None:
    done = run(runtime, tmp_path, url, "trains")
    assert (done.returncode, through(tmp_path)) == (0, ["through0", "through1"]), done.stderr
    until(lambda: not running(runtime, "ncclwatch_agent"))  # it stays until the last word of its ranks was heard
    assert incidents(url) == []
    assert "ncclwatch: " not in done.stdout + done.stderr


def test_a_hang_is_told_and_its_workers_are_ended(runtime: Path, tmp_path: Path, url: str) -> None:
    done = run(runtime, tmp_path, url, "hangs", on_hang="policy")
    assert done.returncode != 0
    first, *_ = sorted(incidents(url), key=lambda incident: incident["opened_at"])
    (line,) = (n for n, text in enumerate(PROGRAM.read_text().splitlines(), start=1) if "all_reduce" in text)
    (culprit,) = first["culprits"]
    assert (culprit["rank"], culprit["call_site"]["line"]) == (0, line), first["summary"]
    assert (first["cause"], first["certainty"]) == ("rank_conditional_collective", "PROVEN"), first["explanation"]
    assert "ending the ranks (abort)" in done.stdout + done.stderr


def test_ray_starts_the_workers_again_when_one_was_stopped(runtime: Path, tmp_path: Path, url: str) -> None:
    done = run(runtime, tmp_path, url, "is stopped", on_hang="restart")
    assert (done.returncode, through(tmp_path)) == (0, ["through0", "through1"]), done.stderr
    assert {incident["cause"] for incident in incidents(url)} == {"process_frozen"}
    assert "ending the ranks, for their launcher to start them again (restart)" in done.stdout + done.stderr
