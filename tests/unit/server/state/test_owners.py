"""Who speaks for a rank: the first that claims it, while it is heard; then who waits for it."""

from dataclasses import replace

import pytest

from ncclwatch_server import limits
from ncclwatch_server.state.job_state import JobState
from ncclwatch_server.state.owners import Speaker
from tests.unit.server.server_values import digest

FIRST = Speaker(agent="a", host="x", token="t", machine="m")
AGAIN, ELSEWHERE = replace(FIRST, agent="b"), Speaker(agent="c", host="y", token="t", machine="n")
OLD = replace(AGAIN, machine="")  # of a version that does not say on which machine it is
FORGER = replace(AGAIN, token="u")
NAMELESS = Speaker(agent="", host="y")  # whose hash is 0


def claimed(second: Speaker, *, lost: bool = False, gone: bool = False, quiet_s: float = 0.0) -> JobState:
    """Return a job of which a second agent claims what the first one owns, so long after that was heard."""
    state = JobState(2)
    state.announce(1, (0, 1), 10.0, FIRST)
    digest(state, 1, 10.0, {0: 0.0, 1: 0.0})
    state.fold(10.0)
    if gone:
        state.gone(1)
    if lost:
        state.lose(1, 10.0)
    state.announce(2, (0,), 10.0 + quiet_s, second)
    return state


@pytest.mark.parametrize(
    ("second", "how", "owner"),
    [
        (ELSEWHERE, {}, 1),
        (NAMELESS, {}, 1),
        (ELSEWHERE, {"quiet_s": limits.ABANDONED_S}, 1),
        (ELSEWHERE, {"quiet_s": limits.ABANDONED_S + 0.1}, 2),
        (ELSEWHERE, {"lost": True}, 1),
        (ELSEWHERE, {"lost": True, "quiet_s": limits.ABANDONED_S + 0.1}, 2),
        (ELSEWHERE, {"gone": True, "lost": True, "quiet_s": 1e6}, 1),
        (OLD, {"lost": True}, 1),
        (OLD, {"lost": True, "quiet_s": limits.ABANDONED_S + 0.1}, 2),
        (FORGER, {"lost": True}, 1),
        (FORGER, {"gone": True}, 1),
        (replace(AGAIN, host="renamed"), {"lost": True}, 2),
        (AGAIN, {}, 1),
        (AGAIN, {"quiet_s": limits.SILENT_S / 2}, 1),
        (AGAIN, {"quiet_s": limits.SILENT_S / 2 + 0.1}, 2),
        (AGAIN, {"lost": True}, 2),
        (AGAIN, {"gone": True}, 2),
        (FIRST, {}, 2),
    ],
)
def test_a_second_agent_is_given_a_rank_when_the_first_one_is_no_more(
    second: Speaker, how: dict[str, float], owner: int
) -> None:
    assert claimed(second, **how).owner(0) == owner  # type: ignore[arg-type]


def test_the_successor_of_an_agent_that_does_not_say_its_machine_is_on_a_host_of_that_name() -> None:
    old = replace(FIRST, machine="")
    assert AGAIN.succeeds(old)
    assert not ELSEWHERE.succeeds(old)
    assert not FORGER.succeeds(old)


def test_a_job_belongs_to_others_while_its_agents_may_come_back() -> None:
    state = claimed(FORGER, lost=True)
    assert not state.belongs_to_others(AGAIN, 10.1)
    assert state.belongs_to_others(FORGER, 10.0 + limits.ABANDONED_S)
    assert not state.belongs_to_others(FORGER, 10.1 + limits.ABANDONED_S)


def test_who_waits_is_given_the_rank_when_its_owner_has_fallen_silent_and_not_before() -> None:
    state = claimed(ELSEWHERE)
    assert state.contested == {2: (0,)}
    digest(state, 2, 10.1, {0: 9.0})
    state.fold(10.0 + limits.ABANDONED_S)
    assert (state.owner(0), state.owner(1)) == (1, 1)
    state.fold(11.1 + limits.ABANDONED_S)
    assert (state.owner(0), state.owner(1), state.contested) == (2, 1, {})
    digest(state, 2, 12.2 + limits.ABANDONED_S, {0: 9.0})
    state.fold(12.2 + limits.ABANDONED_S)
    assert state.suspicion(13.2 + limits.ABANDONED_S).waiting == (0,)


def test_an_agent_that_comes_back_gets_its_ranks_back_and_keeps_them() -> None:
    state = claimed(ELSEWHERE, lost=True, quiet_s=limits.ABANDONED_S + 1)
    assert state.owner(0) == 2
    state.announce(3, (0, 1), 22.0, FIRST)
    assert (state.owner(0), state.owner(1)) == (3, 3)
    state.announce(4, (0,), 22.0, ELSEWHERE)
    assert state.owner(0) == 3


def test_rows_of_ranks_that_a_connection_does_not_own_are_not_in_the_tables() -> None:
    state = claimed(ELSEWHERE)
    for now in (10.1, 11.1):
        digest(state, 1, now, {0: 0.0, 1: 0.0}, enqueued=int(now))
        digest(state, 2, now, {0: 900.0, 1: 900.0}, enqueued=99, ended=(0, 1))
        assert state.fold(now) == ()
    assert not state.suspicion(12.0)
    assert (state.steps, len(state.picture(12.0).ranks), len(state.picture(12.0).groups)) == (0, 2, 2)


def test_a_connection_speaks_only_for_what_it_has_announced() -> None:
    state = JobState(2)
    state.announce(1, (0,), 10.0, FIRST)
    digest(state, 1, 10.0, {0: 0.0, 1: 900.0}, ended=(1,))
    state.fold(10.0)
    assert (state.owner(1), state.seen.tolist(), state.ended.tolist()) == (-1, [True, False], [False, False])


def test_a_job_that_only_says_to_have_many_ranks_takes_no_memory_for_them() -> None:
    state = JobState(200_000)
    state.announce(1, (), 10.0, FIRST)
    assert not state._owner.flags.writeable
    assert not state._moved_at.flags.writeable
    assert not state.suspicion(11.0)
