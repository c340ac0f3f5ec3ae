"""The ways in which handing a message over ends: delivered, to be tried again, or refused for good."""

from typing import Protocol

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch_server.notify.message import Message

SEND_S = 10.0  # for one attempt, name look-up included


class Undelivered(NcclwatchError):
    """A message that did not get through now, and may later."""

    def __init__(self, sentence: str, retry_after_s: float = 0.0) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s


class Refused(NcclwatchError):
    """A message that this target will never take."""


class Channel(Protocol):
    """One way to one target."""

    refresh_s: float  # what is told must be told again and again, this often; 0: once is enough

    async def send(self, message: Message) -> None:
        """Deliver a message, once. Raises `Undelivered` or `Refused`."""
