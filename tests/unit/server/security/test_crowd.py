"""Who has shown nothing has few places, and who has keeps his; a log is not filled by one kind of line."""

import logging

from ncclwatch_server import limits
from ncclwatch_server.runtime.logs import Seldom
from ncclwatch_server.security.crowd import Crowd, Dropped, room


def test_of_too_many_newcomers_the_oldest_of_the_greediest_address_goes() -> None:
    crowd, gone = Crowd(64), []
    assert (crowd.newcomers_max, crowd.newcomers_per_address_max, crowd.agents_max) == (16, 8, 48)
    for address in ("10.0.0.1", "10.0.0.2"):
        for number in range(8):
            seat = crowd.admit(address)
            assert seat is not None
            seat.hang_up = lambda name=f"{address} {number}": gone.append(name)  # type: ignore[misc]
    assert gone == []
    crowd.admit("10.0.0.2")
    crowd.admit("10.0.3.1")
    crowd.admit("10.0.3.2")
    assert gone == ["10.0.0.2 0", "10.0.0.1 0", "10.0.0.2 1"]
    assert (crowd.connections, crowd.newcomers, crowd.dropped) == (16, 16, {Dropped.NEWCOMERS: 3})


def test_who_has_shown_something_is_never_pushed_out_and_a_full_house_takes_nobody() -> None:
    crowd = Crowd(8)
    crowd.admit("10.0.0.1")
    known = []
    while (seat := crowd.admit("10.0.0.2")) is not None:
        seat.show()
        known.append(seat)
    assert all(seat.taken for seat in known)
    assert (crowd.connections, crowd.newcomers, crowd.dropped[Dropped.FULL]) == (8, 0, 1)
    known[0].leave()
    known[0].leave()
    assert crowd.connections == 7
    assert crowd.admit("10.0.0.3") is not None


def test_a_named_proxy_may_have_more_newcomers_than_any_other_address() -> None:
    crowd = Crowd(64, many_from=("10.0.0.1",))
    for _ in range(16):
        crowd.admit("10.0.0.1")
    assert (crowd.newcomers, crowd.dropped[Dropped.NEWCOMERS]) == (16, 0)


def test_descriptors_are_kept_for_the_store() -> None:
    assert room(256) == 192
    assert room(10) == 8
    assert room(1_000_000) == limits.CONNECTIONS_MAX


def test_of_one_kind_of_line_so_many_are_written_in_a_minute() -> None:
    now = [0.0]
    seldom = Seldom(2, lambda: now[0])

    def written(message: str, value: int) -> str | None:
        record = logging.LogRecord("n", logging.INFO, "p", 1, message, (value,), None)
        return record.getMessage() if seldom.filter(record) else None

    assert [written("refused %d", number) for number in range(5)] == ["refused 0", "refused 1", None, None, None]
    assert written("other %d", 1) == "other 1"
    now[0] = 60.0
    assert written("refused %d", 9) == "refused 9 (and 3 more like it that were not written)"
    assert written("refused %d", 10) == "refused 10"
