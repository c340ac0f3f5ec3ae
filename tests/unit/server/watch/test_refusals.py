"""Whom a server refused lately."""

from ncclwatch_server.watch.refusals import REFUSALS_MAX, Refusals


def test_the_same_refusal_is_counted_and_the_newest_comes_first() -> None:
    now = [100.0]
    refusals = Refusals(lambda: now[0])
    refusals.note("10.0.0.3", "unknown token")
    refusals.note("node1", "no room", "team/run")
    now[0] = 107.0
    refusals.note("10.0.0.3", "unknown token")
    first, second = refusals.lately()
    assert (first.where, first.job, first.times, first.at) == ("10.0.0.3", "", 2, 107.0)
    assert (second.where, second.job, second.times, second.at) == ("node1", "team/run", 1, 100.0)


def test_whoever_comes_from_many_addresses_takes_a_bounded_room() -> None:
    refusals = Refusals(lambda: 0.0)
    for number in range(10 * REFUSALS_MAX):
        refusals.note(f"10.0.0.{number}", "unknown token")
    found = refusals.lately()
    assert len(found) == REFUSALS_MAX
    assert found[0].where == f"10.0.0.{10 * REFUSALS_MAX - 1}"
