"""A pulse that fails for good, or cannot begin, says that its rank is not recorded any more; training goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank import pulse, worker_server
from ncclwatch.rank.pulse import BEATS_FAILED_MAX, Pulse
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile

ROOT = Path(__file__).parents[3]


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(1, 1), attempt=0))


def live(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, errors: list[BaseException | None]
) -> tuple[Pulse, list[str]]:
    """Let a pulse live in this thread whose beats end so, one after the other, the last of them by its stop."""
    said: list[str] = []
    beating = Pulse(recorder, "/nowhere", first=False, witness="", warn=lambda text, *_: said.append(text))
    beats = iter(errors)

    def beat() -> None:
        error = next(beats, StopIteration)
        if error is StopIteration:
            beating.stop()
        elif isinstance(error, BaseException):
            raise error

    monkeypatch.setattr(worker_server, "start", lambda _: None)
    monkeypatch.setattr(pulse.config, "PULSE_S", 0.0)
    monkeypatch.setattr(beating, "_beat", beat)
    beating._run()
    return beating, said


def failures(count: int) -> list[BaseException | None]:
    return [MemoryError("none left")] * count


@pytest.mark.parametrize(
    ("errors", "lost"),
    [
        ([], False),
        (failures(BEATS_FAILED_MAX - 1), False),
        ([*failures(BEATS_FAILED_MAX - 1), None, *failures(BEATS_FAILED_MAX - 1)], False),
        (failures(BEATS_FAILED_MAX), True),
        ([SystemExit(1)], True),
    ],
)
def test_a_pulse_that_fails_for_good_says_that_its_rank_is_not_recorded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, errors: list[BaseException | None], lost: bool
) -> None:
    beating, said = live(recorder, monkeypatch, errors)
    assert beating.lost is lost
    assert recorder.ring.word(Word.DETACHED) == int(lost)
    assert len(said) == int(lost)
    assert not lost or said[0].startswith("this rank is not recorded any more: its pulse failed (")


NO_THREAD = """
import os, threading, warnings
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", NCCLWATCH_AGENT="0")
from ncclwatch.contract.machine import quiet_threads
def refuse(_): raise RuntimeError("can't start new thread")
quiet_threads.start = refuse
import ncclwatch
ncclwatch.attach()
import torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
dist.barrier()
print("training went on")
"""


def test_a_rank_whose_pulse_cannot_begin_is_not_judged_by_its_ring(tmp_path: Path) -> None:
    environ = {
        "NCCLWATCH_RUNTIME_DIR": str(tmp_path / "run"),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", NO_THREAD],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "training went on\n"
    assert "can't start new thread" in done.stderr
    for path in tmp_path.rglob("*.ring"):
        with Ring(str(path)) as ring:
            assert ring.words()[Word.DETACHED] == 1
