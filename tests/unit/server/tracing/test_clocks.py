"""Clocks aligned by collectives: the true offset always lies within the stated error."""

from hypothesis import given
from hypothesis import strategies as st

from ncclwatch_server.tracing.clocks import Passage, align
from ncclwatch_server.tracing.model import Clock

HOSTS = ("a", "b", "c")
moments = st.lists(
    st.tuples(st.sets(st.sampled_from(HOSTS), min_size=2), st.lists(st.floats(0.0, 0.5), min_size=6, max_size=6)),
    min_size=1,
    max_size=30,
)


@given(moments, st.tuples(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4)))
def test_the_true_offset_lies_within_the_error(
    collectives: list[tuple[set[str], list[float]]], ahead: tuple[float, ...]
):
    """Each collective: its members enter after some work, and go on a while after the last has come."""
    offsets = dict(zip(HOSTS, (0.0, *ahead), strict=True))
    now, found = 0.0, []
    for hosts, waits in collectives:
        entered = {host: now + waits[number] for number, host in enumerate(HOSTS) if host in hosts}
        last = max(entered.values())
        left = {host: last + waits[3 + number] for number, host in enumerate(HOSTS) if host in hosts}
        # What a clock shows is the true time less what has to be added to it.
        found.append(
            [
                Passage(clock=host, entered_s=entered[host] - offsets[host], left_s=left[host] - offsets[host])
                for host in hosts
            ]
        )
        now = last + 1.0
    for host, clock in align(HOSTS, found).items():
        if clock.error_s is not None:
            assert abs(clock.offset_s - offsets[host]) <= clock.error_s + 1e-6


def test_hosts_that_share_no_collective_are_aligned_through_others():
    meets = [
        [Passage(clock="a", entered_s=1.0, left_s=1.1), Passage(clock="b", entered_s=11.0, left_s=11.1)],
        [Passage(clock="b", entered_s=12.0, left_s=12.1), Passage(clock="c", entered_s=2.0, left_s=2.1)],
    ]
    found = align(("a", "b", "c"), meets)
    assert abs(found["b"].offset_s + 10.0) <= 0.1 + 1e-9
    assert abs(found["c"].offset_s) <= 0.2 + 1e-9
    assert found["c"].error_s is not None
    assert found["c"].error_s <= 0.2 + 1e-9


def test_a_clock_that_nothing_bounds_is_left_as_it_is_and_says_so():
    hung = [[Passage(clock="a", entered_s=1.0, left_s=None), Passage(clock="b", entered_s=5.0, left_s=None)]]
    assert align(("a", "b"), hung)["b"] == Clock(offset_s=0.0, error_s=None)
    assert align((), ()) == {}


def test_clocks_that_ran_apart_state_no_error():
    apart = [
        [Passage(clock="a", entered_s=1.0, left_s=1.001), Passage(clock="b", entered_s=1.0, left_s=1.001)],
        [Passage(clock="a", entered_s=9.0, left_s=9.001), Passage(clock="b", entered_s=9.5, left_s=9.501)],
    ]
    assert align(("a", "b"), apart)["b"].error_s is None
