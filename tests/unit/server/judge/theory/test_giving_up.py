"""When a rank counts as one that has given a wait up: it caught that one failed, and made no call since."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import Op, OpView, ProcessState, ProcessView, RankView
from ncclwatch_server.judge.theory.ends.kinds import has_given_up


def view(error: str, since_s: float = 5.0, *, call_ago_s: float = 9.0) -> RankView:
    call = OpView(group="dp", seq=1, op=Op.ALL_REDUCE, completed=True, age_s=call_ago_s)
    return RankView(
        rank=0, local_rank=0, host="a", pid=1, device="", world_size=2, local_world_size=2, attempt=0,
        process=ProcessView(state=ProcessState.SLEEPING), pulse_age_s=0.2, initialised=True, last_exception=error,
        last_exception_s=since_s, history=(call,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "given_up"),
    [
        ("RuntimeError: [enforce fail at pair.cc] Connection closed by peer [::1]:1", True),
        ("DistBackendError: wait timeout after 1800000ms", True),
        ("RuntimeError: Timed out", True),
        ("ValueError: bad label", False),
        ("", False),
    ],
)
def test_the_error_is_that_of_a_wait(error: str, given_up: bool) -> None:
    assert has_given_up(view(error)) is given_up


@pytest.mark.parametrize(("call_ago_s", "given_up"), [(5.1, True), (5.0, True), (4.9, False)])
def test_a_call_that_came_to_its_end_later_takes_it_up_again(call_ago_s: float, given_up: bool) -> None:
    assert has_given_up(view("RuntimeError: Timed out", call_ago_s=call_ago_s)) is given_up


def test_a_call_that_has_not_come_to_its_end_takes_nothing_up() -> None:
    waiting = view("RuntimeError: Timed out", call_ago_s=1.0)
    waiting = replace(waiting, history=tuple(replace(each, completed=False) for each in waiting.history))
    assert has_given_up(waiting)
