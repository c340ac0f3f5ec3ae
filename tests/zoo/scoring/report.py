"""Reads what ncclwatch said: the part of its report (`ncclwatch_server.incidents.report`) that is scored."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from ncclwatch.contract.model.verdict import Repair


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    file: str
    line: int
    function: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    rank: int
    call_site: CallSite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    kind: str
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    cause: str
    severity: str
    certainty: str = ""
    summary: str = ""
    explanation: str = ""
    advice: str = ""
    culprits: tuple[Culprit, ...] = ()
    victims: tuple[int, ...] = ()
    predicted: bool = False
    repairs: tuple[Repair, ...] = ()
    slowness: Slowness | None = None
    opened_at: str = ""  # ISO 8601


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    schema: int
    incidents: tuple[Incident, ...] = ()

    @property
    def critical(self) -> tuple[Incident, ...]:
        return tuple(incident for incident in self.incidents if incident.severity == "critical")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """There is no report, and why."""

    reason: str


def read(path: Path) -> Report | Unreadable:
    """Read the file that ``ncclwatch run --report`` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        return Unreadable(reason=f"no report was written: {error.strerror}")
    except msgspec.DecodeError as error:
        return Unreadable(reason=f"the report is not in the schema: {error}")
