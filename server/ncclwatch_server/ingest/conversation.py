"""What a line for an agent asks of whoever talks on it, and of whoever lets agents in."""

from typing import Protocol, TypeVar

from starlette.datastructures import Headers

from ncclwatch_server.ingest.line_budget import LineBudget
from ncclwatch_server.ingest.turns import Turns

LineT = TypeVar("LineT", contravariant=True)


class Talk(Protocol):
    """What is said on one line. What it raises ends the connection, and only that."""

    def begin(self) -> None:
        """The line is open."""

    def expects(self, size: int, head: bytes, *, text: bool) -> bool:
        """Say whether a long message may come, of which these are the first bytes. If not, the talk has been ended."""

    def take(self, data: bytes, *, text: bool) -> None:
        """Take a message: of JSON, or a digest."""

    def starve(self, reason: str) -> None:
        """End the talk: it costs too much."""

    def unblocked(self) -> None:
        """Go on to send: the agent reads again."""

    def ended(self) -> None:
        """The line is no more."""


class Host(Protocol[LineT]):
    """Who lets agents in. The application's lifespan hands it over, by the name `websocket.HOST`."""

    budget: LineBudget
    turns: Turns

    def problem(self, path: str, headers: Headers) -> tuple[int, str]:
        """Return the HTTP status and the sentence of a refusal, (0, "") if there is none."""

    def meet(self, line: LineT, headers: Headers) -> Talk:
        """Return who talks on a line that is about to open."""
