"""What the kernel knows of a node that says nothing."""

import socket
import struct

import pytest

from ncclwatch.contract.model.job import Contact
from ncclwatch_server.ingest.contact import LineContact


class Clock:
    """The server's time."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Kernel:
    """A socket of which the kernel tells what a test wants."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.unacked, self.answered_at = clock, 0, clock()
        self.refuses = False

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes:
        assert (level, name) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        if self.refuses:
            raise OSError("no socket of TCP")
        numbers = [0] * 24
        numbers[4], numbers[11] = self.unacked, 10**6
        numbers[12] = int((self.clock() - self.answered_at) * 1e3)
        return struct.pack("=8x24I", *numbers)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_question_is_answered_by_the_second_look(clock: Clock) -> None:
    kernel, pings = Kernel(clock), []
    contact = LineContact(kernel, lambda: pings.append(clock()), clock)
    kernel.unacked = 1  # a segment of long ago, which is no sign
    assert contact.now() == (Contact.UNKNOWN, 0.0)
    assert pings == [100.0]


def test_a_kernel_that_acknowledges_is_asked_again(clock: Clock) -> None:
    kernel, pings = Kernel(clock), []
    contact = LineContact(kernel, lambda: pings.append(clock()), clock)
    contact.now()
    clock.now += 1
    kernel.answered_at = clock()
    assert contact.now()[0] is Contact.ACKNOWLEDGES
    clock.now += 6  # the answer to the first ping is older than the second ping
    kernel.unacked = 1
    assert contact.now() == (Contact.MUTE, 6.0)
    clock.now += 1
    assert contact.now() == (Contact.MUTE, 7.0)
    assert pings == [100.0, 101.0]


def test_one_that_acknowledged_one_of_two_segments_is_there(clock: Clock) -> None:
    kernel = Kernel(clock)
    contact = LineContact(kernel, lambda: None, clock)
    contact.now()
    clock.now += 5
    kernel.unacked, kernel.answered_at = 1, clock() - 4
    assert contact.now()[0] is Contact.ACKNOWLEDGES


def test_a_system_that_does_not_tell_leaves_it_open(clock: Clock) -> None:
    kernel = Kernel(clock)
    contact = LineContact(kernel, lambda: None, clock)
    contact.now()
    clock.now, kernel.refuses = clock() + 9, True
    assert contact.now()[0] is Contact.UNKNOWN
    assert LineContact(None, lambda: None, clock).now()[0] is Contact.UNKNOWN


@pytest.mark.parametrize("error", [None, ConnectionResetError(104, "reset")])
def test_an_end_from_there_is_an_answer_of_its_kernel(clock: Clock, error: Exception | None) -> None:
    contact = LineContact(Kernel(clock), lambda: None, clock)
    contact.end(error)
    clock.now += 30
    assert contact.now() == (Contact.CLOSED, 30.0)


@pytest.mark.parametrize("error", [TimeoutError(110, "timed out"), OSError(113, "no route to host")])
def test_one_that_the_kernel_gave_up_was_mute_since_it_was_asked(clock: Clock, error: Exception) -> None:
    contact = LineContact(Kernel(clock), lambda: None, clock)
    contact.now()
    clock.now += 20
    contact.end(error)
    clock.now += 10
    assert contact.now() == (Contact.MUTE, 30.0)


def test_what_was_seen_when_this_side_gave_up_stays(clock: Clock) -> None:
    kernel, pings = Kernel(clock), []
    contact = LineContact(kernel, lambda: pings.append(clock()), clock)
    contact.now()
    clock.now, kernel.unacked = clock() + 20, 1
    contact.give_up()
    contact.end(None)
    clock.now += 10
    assert contact.now() == (Contact.MUTE, 30.0)
    assert pings == [100.0]


def test_it_keeps_nothing_of_a_line_that_has_ended(clock: Clock) -> None:
    kernel, pings = Kernel(clock), []
    contact = LineContact(kernel, lambda: pings.append(clock()), clock)
    contact.end(None)
    contact.now()
    assert (contact._sock, pings) == (None, [])
