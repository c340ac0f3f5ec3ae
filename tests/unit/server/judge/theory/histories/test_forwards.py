"""In whose forward an operation was made: as the module is seen now, and in the gradient mode of the call itself."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import GradMode, ModuleView, Op, OpView, ThreadView, WaitKind, WaitView
from ncclwatch_server.judge.theory.histories.forwards import module_of
from tests.unit.server.server_values import view

OP = OpView(group="dp", seq=7, op=Op.ALL_REDUCE)
WAIT = WaitView(kind=WaitKind.COLLECTIVE, age_s=9.0, group="dp", seq=7, op=Op.ALL_REDUCE)
FIRST = ModuleView(root="model", path="layers.*.norm", kind="SyncNorm", training=True, grad=GradMode.NO_GRAD)
NOW = ModuleView(root="model", path="layers.2.norm", kind="SyncNorm", training=False)


@pytest.mark.parametrize(
    ("number", "wait", "found"),
    [
        (1, WAIT, replace(NOW, grad=GradMode.NO_GRAD)),
        (0, WAIT, NOW),  # the ring had no room for it
        (1, replace(WAIT, seq=8), FIRST),
        (0, replace(WAIT, seq=8), None),
    ],
)
def test_the_module_that_a_rank_waits_in_is_told_as_it_is_now(number: int, wait: WaitView, found: ModuleView | None):
    thread = ThreadView(tid=1, main=True, issued=7, wait=wait, module=NOW)
    standing = replace(view(0), threads=(thread,), modules=(FIRST,))
    assert module_of(standing, replace(OP, module=number)) == found
