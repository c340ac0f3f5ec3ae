"""What a server tells the agents of a job whose owner has asked them to act on hangs.

Always the whole picture, so that a message that is lost or comes twice changes nothing.
"""

from dataclasses import dataclass

import msgspec

from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.verdict import Culprit
from ncclwatch.contract.on_hang.decision import Hang
from ncclwatch.contract.undecodable import UNDECODABLE

HANGS_MAX = 16  # of one job, at one time


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHang:
    """A hang that stands, of which no more is to be learned by waiting."""

    incident: str  # its id
    hang: Hang
    stands_s: float  # since it was reported
    capture: str = ""  # in words: where one is, or why there is none
    sentence: str = ""  # what is wrong and what to do, for notices to ranks
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFacts:
    """What a hook is given of a hang beside what all agents hear."""

    incident: str  # its id
    culprits: tuple[Culprit, ...] = ()  # at most the first 32
    one_of: bool = False
    opened_at: str = ""  # ISO 8601, UTC
    capture: str = ""  # HOST:PATH


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Who runs the hook of which open hang: the agent that was the first to ask for it."""

    granted: tuple[HookFacts, ...] = ()  # this agent; it stays so, whoever asks later
    taken: tuple[str, ...] = ()  # incidents of which another agent does
    over: tuple[str, ...] = ()  # incidents whose hook has ended, or is not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangs:
    """The hangs of a job, now and in its former attempts."""

    open: tuple[OpenHang, ...] = ()
    before: tuple[Hang, ...] = ()  # of former attempts, the oldest first
    attempts: int = 0  # how many of them hung
    hooks: Hooks | None = None  # None: nothing is open, or the server knows of no hooks


def encode(hangs: Hangs) -> str:
    """Return it as the text of a command."""
    return msgspec.json.encode(hangs).decode()


def decode(text: str) -> Hangs:
    """Parse the text of a command. Raises `WireError`."""
    try:
        return msgspec.json.decode(text, type=Hangs)
    except UNDECODABLE as error:
        raise WireError(f"a server tells of hangs in a form that is unknown ({error})") from error
