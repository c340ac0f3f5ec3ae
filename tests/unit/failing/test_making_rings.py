"""Whichever system call fails while a ring is made: no file is left, the error is told, and the next try succeeds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.ring import mapping
from ncclwatch.rank.ring.ringfile import RingFile, place_of_rings
from tests.unit.failing.system_calls import CALLS, each_failure, no_space


def make(top: Path) -> RingFile:
    with place_of_rings(str(top), "job") as place:
        return RingFile(
            f"{place.path}/0-1.ring", rank=0, local_rank=0, world=(1, 1), attempt=0, place=place.again()
        )  # fmt: skip


def rings(top: Path) -> list[Path]:
    return list(top.rglob("*.ring"))


# Without memory fstat() fails in close() as well, when the ring is made: see `attach` for what is left then.
@pytest.mark.parametrize(
    ("name", "error"),
    [(name, no_space) for name in CALLS] + [(name, MemoryError) for name in CALLS if name != "fstat"],
)
def test_making_a_ring(name: str, error: Callable[[], BaseException], tmp_path: Path) -> None:
    def attempt(number: int) -> None:
        top = tmp_path / str(number)
        try:
            ring = make(top)
        except (OSError, NcclwatchError, MemoryError) as raised:
            failed[number] = raised
        else:
            ring.place.close()

    failed: dict[int, BaseException] = {}
    calls = each_failure(name, attempt, error)
    for number in range(1, calls + 1):
        top = tmp_path / str(number)
        if number in failed:
            assert rings(top) == []
            made = make(top)
            made.place.close()
        with Ring(str(rings(top)[0])) as found:
            assert found.header.rank == 0


def test_memory_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> mapping.Mapping:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="Cannot allocate"):
        patched.setattr(mapping, "_map", refuse)
        make(tmp_path / "run")
    assert rings(tmp_path) == []
    make(tmp_path / "run").place.close()
