"""An agent finds the server that leads among those that were named, and dials no other one."""

from ncclwatch_agent.uplink.addresses import Addresses

A, B, C = "http://a:8470", "http://b:8470", "http://c:8470"


def test_one_server_has_no_other() -> None:
    one = Addresses(A)
    assert (one.current, one.elected) == (A, False)
    assert one.next()
    assert one.current == A


def test_all_are_tried_before_it_waits() -> None:
    three = Addresses(f"{A}, {B},{C}")
    dialled = [three.current]
    while not three.next():
        dialled.append(three.current)
    assert dialled == [A, B, C]
    assert (three.current, three.rounds) == (A, 1)


def test_the_one_that_leads_is_next() -> None:
    three = Addresses(f"{A},{B},{C}")
    assert not three.next(C)
    assert three.current == C
    assert not three.next()  # it has gone meanwhile
    assert three.current == B


def test_a_leader_that_nobody_named_is_not_dialled() -> None:
    one = Addresses(A)
    assert one.next(C)
    assert (one.current, one.elected) == (A, True)  # behind which there may be several


def test_two_that_name_each_other_are_not_dialled_without_end() -> None:
    two = Addresses(f"{A},{B}")
    assert not two.next(B)
    assert two.next(A)


def test_after_a_connection_the_search_begins_anew() -> None:
    two = Addresses(f"{A},{B}")
    two.next()
    two.next()
    two.reached()
    assert two.rounds == 0
    assert not two.next()
