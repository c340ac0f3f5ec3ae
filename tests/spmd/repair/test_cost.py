"""A search for the smallest repair ends after a bounded number of calls, whatever the job."""

from collections.abc import Callable

import pytest

from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.judge.theory.repair import hang
from ncclwatch_server.judge.theory.repair.replay import Outcome, Script, Stage, play
from tests.spmd.repair.by_hand import Part, carried_out, seen

RANKS, STEPS = 64, 24
WRONG = (21, 50)  # leave out a call in the last step


def begins_alike(part: Part) -> None:
    """Receive a broadcast of rank 0 in each step: the place in its tree makes each rank one of a kind."""
    part.call(12, "broadcast", root=0)


def begins_apart(part: Part) -> None:
    """Come to one broadcast by two branches, once: that parts rank 0 from all others at its first call."""
    if part.steps[1:]:
        return
    part.call(12 if part.rank == 0 else 13, "broadcast", root=0)


def program(begin: Callable[[Part], None]) -> Callable[[Part], None]:
    def run(part: Part) -> None:
        row, column = str(1 + part.rank // 8), str(1 + RANKS // 8 + part.rank % 8)
        for step in range(STEPS):
            begin(part)
            for layer in range(4):
                part.call(20 + layer, group=row)
                if layer != 2 or step < STEPS - 1 or part.rank not in WRONG:
                    part.call(30 + layer, "all_gather", row, 5)
            part.call(40, group=column)

    return run


@pytest.mark.parametrize("begin", [begins_alike, begins_apart])
def test_what_is_replayed_is_bounded(begin: Callable[[Part], None], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [tuple(range(first, first + 8)) for first in range(0, RANKS, 8)]
    columns = [tuple(range(first, RANKS, 8)) for first in range(8)]
    case = open_case(seen(carried_out(RANKS, [*rows, *columns], program(begin))))
    replayed = 0

    def counted(stage: Stage, scripts: list[Script], *, eager: bool) -> Outcome:
        nonlocal replayed
        replayed += sum(len(script.calls) for script in scripts)
        return play(stage, scripts, eager=eager)

    monkeypatch.setattr(hang, "play", counted)
    assert not case.repair.certain
    assert 0 < replayed <= 1.2 * hang.WORK_MAX
