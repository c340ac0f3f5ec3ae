"""Speaks to one agent without ever waiting for it."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ncclwatch.contract import wire
from ncclwatch.contract.model.job import Contact
from ncclwatch_server import limits
from ncclwatch_server.security.scopes import Caller

_ANYONE = Caller(name="anyone")
# Commands without an answer; and the one whose answer is expected in `Probes`: its text may be long, and comes often.
_NOT_KEPT = (wire.CommandKind.PRINT, wire.CommandKind.HANGS, wire.CommandKind.PROBE)


def nobody() -> None:
    """Wake no connection: there is none, or none any more."""


def no_contact() -> tuple[Contact, float]:
    """Know nothing of the node: there is no connection of this server to it."""
    return Contact.UNKNOWN, 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Link:
    """One connected agent. What is sent waits in a bounded box until the connection takes it."""

    number: int  # rises with every connection
    agent: str  # which agent of whose: no other token can show the same
    host: str  # as it is shown
    version: str
    said_host: str = ""  # as its hello says
    machine: str = ""  # the same
    caller: Caller = _ANYONE  # whose token it showed
    wake: Callable[[], None] = nobody  # called when there is something in the box, or the line is to be closed
    contact: Callable[[], tuple[Contact, float]] = no_contact  # what the line shows of the node, and for how long
    outbox: deque[wire.ServerMessage] = field(default_factory=deque)
    closing: bool = False
    ahead_s: float | None = None  # by how much its host's clock is ahead of ours, as far as its hello can tell
    refusal: str = ""  # why the server ends this connection
    clock: Callable[[], float] = time.monotonic
    _command: int = 0
    _sent: dict[int, tuple[wire.CommandKind, float]] = field(default_factory=dict)  # commands without an answer yet
    _asked: dict[int, tuple[wire.CommandKind, int, str]] = field(default_factory=dict)  # the newest commands

    def send(self, message: wire.ServerMessage) -> None:
        """Put a message into the box. An agent that takes none is let go."""
        if len(self.outbox) >= limits.OUTBOX_MAX:
            self.closing = True
        else:
            self.outbox.append(message)
        self.wake()

    def command(
        self, kind: wire.CommandKind, index: int, ranks: tuple[int, ...] = (), text: str = "", *, deeply: bool = False
    ) -> int:
        """Send a command and return its id, which no other command on this connection has."""
        self._command += 1
        if kind not in _NOT_KEPT:
            self._asked[self._command] = kind, index, text
            if len(self._asked) > limits.ASKED_KEPT_MAX:
                del self._asked[next(iter(self._asked))]
            self._sent[self._command] = kind, self.clock()
            if len(self._sent) > limits.OUTBOX_MAX:  # an agent may answer none
                del self._sent[next(iter(self._sent))]
        self.send(wire.Command(id=self._command, kind=kind, index=index, ranks=ranks, text=text, deeply=deeply))
        return self._command

    def asked(self, command: int, kind: wire.CommandKind, index: int, text: str = "") -> bool:
        """Whether a command of this kind was sent, for that job. An answer may come in several messages."""
        return self._asked.get(command) == (kind, index, text)

    def answered(self, command: int) -> tuple[wire.CommandKind, float] | None:
        """Return what a command was and how many seconds its answer took; None if it is unknown or answered."""
        kind, sent_at = self._sent.pop(command, (None, 0.0))
        return None if kind is None else (kind, self.clock() - sent_at)

    def refuse(self, reason: str) -> None:
        """Tell the agent why its news is not taken, and close."""
        self.refusal = reason
        self.closing = True
        self.wake()
