"""Which class a wait is of: the mark, the stack, the operation."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.job import WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.rank import (
    CallSite,
    LoaderView,
    Op,
    OpView,
    RankView,
    StackDump,
    StackFrame,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch_server.judge.theory.phases import class_of, phase_of, size_class
from ncclwatch_server.judge.theory.waits.rank_standing import Operation
from tests.unit.server.server_values import view

BARRIER = Operation(group="dp", seq=9, members=(0, 1, 2))
FIRST = Operation(group="dp", seq=1, members=(0, 1))
RECV = Operation(group="pp", seq=9, members=(0, 1), kind=WaitKind.RECV, source=0, target=1)
MAKING = Operation(group="new_group", seq=0, members=(0, 1), kind=WaitKind.NEW_GROUP)
LOADER = CallSite(file="/u/train.py", line=30, function="main")


def at(*functions: str, work: Phase | None = None, wait: WaitView | None = None, phase: str = "") -> RankView:
    """Return a rank whose main thread stands in these functions of the user, innermost first."""
    frames = tuple(CallSite(file="/u/train.py", line=n, function=name) for n, name in enumerate(functions, 1))
    thread = ThreadView(tid=1, main=True, issued=1, frames=frames, work=work, wait=wait)
    return replace(view(0), threads=(thread,), phase=phase)


def drawing(drawn: int, *, exhausted: bool = False, used: int = 0) -> RankView:
    """Return a rank with a loader, in whose next() it is unless it has come to its end."""
    loader = LoaderView(site=LOADER, passes=2, drawn=drawn, exhausted=exhausted)
    wait = None if exhausted else WaitView(kind=WaitKind.DATA, age_s=3.0, site=LOADER)
    op = OpView(group="dp", seq=8, op=Op.ALL_REDUCE, loader=used)
    return replace(at("main", wait=wait), loaders=(loader,), history=(op,))


@pytest.mark.parametrize(
    ("late", "operation", "phase"),
    [
        (at("step", phase="validate"), BARRIER, (Phase.VALIDATION, "")),
        (at("validate", phase="save"), BARRIER, (Phase.CHECKPOINT, "")),
        (at("validate", phase="train"), BARRIER, (Phase.VALIDATION, "")),
        (at("collate", phase="rollout"), BARRIER, (Phase.OTHER, "rollout")),
        (at("validate", phase="rollout"), BARRIER, (Phase.VALIDATION, "")),
        (at("write", "save_best", "validate", "main"), BARRIER, (Phase.CHECKPOINT, "")),
        (at("forward", "validate", "main"), BARRIER, (Phase.VALIDATION, "")),
        (at("forward", "validate", "main", work=Phase.COMPILE), BARRIER, (Phase.COMPILE, "")),
        (at("main", wait=WaitView(kind=WaitKind.SAVE, age_s=3.0)), BARRIER, (Phase.CHECKPOINT, "")),
        (at("train_one_epoch", "main"), BARRIER, (Phase.STEP, "")),
        (at("train_one_epoch", "main"), FIRST, (Phase.FIRST_USE, "")),
        (at("save_checkpoint", "main"), FIRST, (Phase.CHECKPOINT, "")),
        (at("forward", "main"), RECV, (Phase.PIPELINE, "")),
        (at("main"), MAKING, (Phase.STARTUP, "")),
        (drawing(0), BARRIER, (Phase.END_OF_EPOCH, "")),
        (drawing(7), BARRIER, (Phase.STEP, "")),
        (drawing(50, exhausted=True, used=1), BARRIER, (Phase.END_OF_EPOCH, "")),
        (drawing(50, exhausted=True, used=0), BARRIER, (Phase.STEP, "")),
        (view(0), BARRIER, (Phase.STEP, "")),
    ],
)
def test_what_a_late_rank_does(late: RankView, operation: Operation, phase: tuple[Phase, str]) -> None:
    assert phase_of(late, operation) == phase


def test_py_spy_tells_where_the_pulse_cannot_look() -> None:
    frame = StackFrame(function="wait", file="/v/site-packages/torch/_inductor/async_compile.py", line=3)
    dump = StackDump(rank=0, threads=(("Thread-1", ()), ("MainThread", (frame,))))
    assert phase_of(at("main"), BARRIER, dump) == (Phase.COMPILE, "")
    assert phase_of(at("validate"), BARRIER, dump) == (Phase.VALIDATION, "")


def test_of_several_late_ranks_the_one_that_takes_longest_decides() -> None:
    ranks = [at("train_one_epoch"), at("validate"), at("save_checkpoint")]
    assert class_of(ranks, BARRIER, "barrier", {}) == WaitClass(phase=Phase.VALIDATION, op="barrier", size=4)


@pytest.mark.parametrize(("members", "size"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (1000, 1024)])
def test_groups_of_like_size_are_one_class(members: int, size: int) -> None:
    assert size_class(members) == size
