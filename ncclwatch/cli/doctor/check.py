"""The result of one look at this machine: what was looked at, how it went, and what to do."""

from dataclasses import dataclass
from enum import Enum

from ncclwatch.cli.exits import Exit


class Status(str, Enum):
    """How a check ended. The worst of all decides the exit code."""

    PASS = "PASS"
    WARN = "WARN"  # works, with less, or hides hangs
    FAIL = "FAIL"  # does not work

    @property
    def exit(self) -> Exit:
        """The exit code of a command of which this is the worst result."""
        return {Status.PASS: Exit.DONE, Status.WARN: Exit.BAD_NEWS, Status.FAIL: Exit.BROKEN}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    fact: str
    fix: str = ""  # what to type or to change; never "" unless all is well


def passed(name: str, fact: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name=name, status=Status.PASS, fact=fact)


def warned(name: str, fact: str, fix: str) -> Check:
    """Return a check that found something that is better changed."""
    return Check(name=name, status=Status.WARN, fact=fact, fix=fix)


def failed(name: str, fact: str, fix: str) -> Check:
    """Return a check that found something that does not work."""
    return Check(name=name, status=Status.FAIL, fact=fact, fix=fix)
