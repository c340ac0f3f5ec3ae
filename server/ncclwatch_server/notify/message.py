"""Words a message: what all targets share, before each gives it its own form.

What ranks have sent (names, lines, exceptions, the program's own words) is made one printable line and cut here;
escaping what a receiver would read is the business of each form.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from shlex import quote

from ncclwatch.contract.model.verdict import Certainty, Severity
from ncclwatch.contract.stacks.tree import gang_line
from ncclwatch.contract.words.printable import one_line
from ncclwatch.contract.words.text import group_words, ranks_words, seconds_words
from ncclwatch_server.evidence.stack_collection import main_tree, where
from ncclwatch_server.incidents.book import Incident, IncidentState
from ncclwatch_server.incidents.terminal_text import certainty, who
from ncclwatch_server.notify.stages import Stage

TITLE_MAX = 300
FACT_MAX = 700
TREE_LINES_MAX = 40
TREE_MAX = 2500
CULPRITS_MAX = 4
READ_PER_CHAR = 8  # characters of a text that are looked at for each one that is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message to one target. Its id is the same at each attempt."""

    id: str
    stage: Stage
    incident: Incident
    at: float  # seconds since 1970
    step: int = 0  # of the rank that was furthest; 0: unknown
    base: str = ""  # where people reach this server
    test: bool = False

    @property
    def link(self) -> str:
        """Return the page of the incident, "" where nobody said how people reach this server."""
        return f"{self.base}/incidents/{self.incident.id}" if self.base else ""

    @property
    def title(self) -> str:
        """Return the sentence that says it all."""
        incident = self.incident
        said = f"job {incident.job}: {incident.verdict.summary}"
        if self.test:
            said = f"TEST, nothing is wrong. {said}"
        if self.stage is Stage.RESOLVED:
            ended = incident.state is IncidentState.ENDED
            said = f"{'OVER, the job has ended' if ended else 'RESOLVED, the job goes on'}. {said}"
        elif self.stage is Stage.UPDATED:
            said = f"{incident.verdict.severity.value.upper()} (more is known) {said}"
        else:
            said = f"{incident.verdict.severity.value.upper()} {said}"
        return clean(said, TITLE_MAX)

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return labelled sentences, the most important first; empty ones are left out."""
        incident, verdict = self.incident, self.incident.verdict
        label = "one of" if verdict.one_of else "culprit"
        said = [("why", verdict.explanation), ("do", verdict.advice)]
        said += [(label, who(culprit)) for culprit in verdict.culprits[:CULPRITS_MAX]]
        if len(verdict.culprits) > CULPRITS_MAX:
            said.append(("", f"and {ranks_words(c.rank for c in verdict.culprits[CULPRITS_MAX:])}"))
        said += [
            ("waiting", ranks_words(verdict.victims) if verdict.victims else ""),
            ("where", gang_line(where(incident.stacks))),
            ("in", self._operation()),
            ("certainty", certainty(incident)),
            ("cost", cost(incident, self.at)),
            ("incident", incident.id),
            ("page", self.link),
        ]
        if self.stage is not Stage.RESOLVED:
            said.append(("silence", f"ncclwatch silence add {quote(incident.job)} --for 2h"))
        return tuple((name, text) for name, raw in said if (text := clean(raw, FACT_MAX)))

    @property
    def tree(self) -> str:
        """Return the merged stacks of the main threads, "" if there are none."""
        lines = [clean(line, 160, spaces=True) for line in main_tree(self.incident.stacks)]
        more = [f"... {len(lines) - TREE_LINES_MAX} more lines"] if len(lines) > TREE_LINES_MAX else []
        return cut("\n".join(lines[:TREE_LINES_MAX] + more), TREE_MAX)

    def _operation(self) -> str:
        verdict = self.incident.verdict
        where = group_words(verdict.group, verdict.group_title)
        said = f"{verdict.op} number {verdict.seq} of {where}" if verdict.op and verdict.group else ""
        step = f"step {self.step}" if self.step else ""
        return ", ".join(part for part in (said, step) if part)


def burnt_hours(incident: Incident, now: float) -> float:
    """Return rank-hours since the onset: all ranks of the job, until now or until the incident closed."""
    until = incident.closed_at if incident.closed_at is not None else now
    return incident.world_size * (max(0.0, until - incident.opened_at) + incident.onset_to_open_s) / 3600


def cost(incident: Incident, now: float) -> str:
    """Return what the wait has cost, "" where the job was not stopped by it."""
    verdict = incident.verdict
    if verdict.severity is not Severity.CRITICAL or verdict.predicted or verdict.certainty is Certainty.LATE:
        return ""
    devices = {culprit.device.split(":")[0] for culprit in verdict.culprits}
    unit = "rank-hours" if devices == {"cpu"} else "GPU-hours"
    hours, ranks = burnt_hours(incident, now), incident.world_size
    past_s = hours * 3600 / ranks
    said = f"{ranks} rank{'s' if ranks != 1 else ''} x {seconds_words(past_s)} = {amount(hours)} {unit}"
    return f"{said} so far, {ranks} more each hour" if incident.open else said


def amount(value: float) -> str:
    """Return a number with three digits that mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def clean(text: str, chars_max: int, *, spaces: bool = False) -> str:
    """Return one printable line: no controls, no marks that turn the direction of writing, no lone surrogates."""
    text = text[: READ_PER_CHAR * chars_max]  # however much a rank has written: it is looked at in the thread of alerts
    line = re.sub(r"\s", " ", text) if spaces else re.sub(r"\s+", " ", text).strip()
    return cut(one_line(line), chars_max)


def cut(text: str, chars_max: int) -> str:
    """Return at most so many characters, with a mark where some are missing."""
    return text if len(text) <= chars_max else text[: max(0, chars_max - 4)] + " ..."


def iso(at: float) -> str:
    """Return a time as machines write it."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")
