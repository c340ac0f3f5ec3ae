"""Whichever system call fails while an agent looks for rings: what can be read is, and all are found later."""

import time
from pathlib import Path

import pytest

from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch_agent.ranks.rings import BAD_S, STEADY_NS, RingDirectory
from tests.unit.failing.system_calls import CALLS, each_failure
from tests.unit.failing.test_making_rings import make

LOOKS = 5


@pytest.mark.parametrize("name", CALLS)
def test_looking_for_rings(name: str, tmp_path: Path) -> None:
    top = tmp_path / "run"
    written = make(top)
    written.set_word(15, written.string('{"job": "job"}'))

    def attempt(_: int) -> None:
        directory = RingDirectory(place, wall_ns=lambda: time.time_ns() + 10 * STEADY_NS)
        looking.append(directory)
        found = 0
        for look in range(LOOKS):  # the first of them fails somewhere, and the agent goes on
            try:
                rings = directory.new_rings(look * BAD_S)
            except OSError:
                continue
            found += len(rings)
            for ring in rings:
                ring.close()
        assert found == 1

    looking: list[RingDirectory] = []
    with written.place, open_private(str(top)) as place:
        each_failure(name, attempt)
    assert looking
