"""Scores a verdict: compares what ncclwatch said and did with the truth about a program."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ncclwatch.contract.words.repairs import deed_words
from tests.zoo.jobs import Ended
from tests.zoo.scoring.report import CallSite, Incident, Report, Unreadable
from tests.zoo.truth import Expect, Line, Root, Truth

EXIT_ABORTED = 70  # what `ncclwatch run --on-hang abort` exits with
CHECKS = (
    "outcome",
    "culprit",
    "cause",
    "slow kind",
    "call site",
    "fix",
    "explained",
    "certainty",
    "victims",
    "beside",
    "told",
    "foretold",
    "clean",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about a verdict; ``wrong`` says what is not as it should be."""

    name: str
    wrong: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """All that was asked about one run of one program."""

    program: str
    checks: tuple[Check, ...]
    onset_to_verdict_s: float | None
    foretold_s: float | None = None  # a right warning came so long before the onset
    wall_s: float
    repair: str = ""  # the smallest change after which all would have gone on, as the first critical verdict has it

    @property
    def right(self) -> bool:
        return not self.faults

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(f"{check.name}: {check.wrong}" for check in self.checks if check.wrong)


def score(truth: Truth, ended: Ended, report: Report | Unreadable) -> Score:
    """Judge one run under ncclwatch."""
    return Score(
        program=truth.name,
        checks=(*_checks(truth, ended, report), _clean(ended)),
        onset_to_verdict_s=ended.onset_to_verdict_s,
        foretold_s=_foretold_s(truth, ended, report),
        wall_s=ended.wall_s,
        repair=_repair(report),
    )


def _repair(report: Report | Unreadable) -> str:
    """Return the smallest repairs of the first critical verdict in words."""
    first = next(iter(report.critical), None) if isinstance(report, Report) else None
    repairs = first.repairs if first is not None else ()
    return " or ".join(f"rank {each.rank} {deed_words(each)}" for each in repairs)


def _checks(truth: Truth, ended: Ended, report: Report | Unreadable) -> Iterator[Check]:
    if ended.exit_code is None:
        yield Check(name="outcome", wrong=f"still running after {ended.wall_s:.0f} s, killed\n{ended.standstill}")
        return
    if isinstance(report, Unreadable):
        yield Check(name="outcome", wrong=f"{report.reason} (it ended with {ended.last_words!r})")
        return
    yield Check(name="outcome", wrong=_outcome(truth, ended, report))
    if truth.expect.alarms:
        yield Check(name="told", wrong="" if ended.verdict_at else "no critical verdict on standard error")
    else:
        yield Check(name="told", wrong="a critical verdict was printed" if ended.verdict_at else "")
    foretold = [incident for incident in report.incidents if incident.predicted]
    if truth.foretold or (foretold and not truth.expect.alarms):
        yield Check(name="foretold", wrong=_foretold(truth, ended, report))
    if truth.expect is Expect.HEALTHY:
        return
    severity = "critical" if truth.expect.alarms else "warning"
    said = [incident for incident in report.incidents if incident.severity == severity]
    if not said:
        return
    # The first incident is the one that the user reads, and of several faults the one that the others are beside.
    beside = {root: _beside(root, said) for root in truth.besides}
    incident = next((each for each in said if each not in beside.values()), said[0])
    missing = [f"nothing of {root.cause[0]} by {root.culprits}" for root, found in beside.items() if found is None]
    yield from [Check(name="beside", wrong="; ".join(missing))] * bool(truth.besides)
    yield Check(name="culprit", wrong=_culprit(truth, incident))
    yield Check(name="cause", wrong=_cause(truth, incident))
    if truth.slow_kind:
        yield Check(name="slow kind", wrong=_slow_kind(truth, incident))
    yield Check(name="call site", wrong="; ".join(_call_sites(truth, incident)))
    yield Check(name="fix", wrong=_fix(truth, incident))
    if truth.explained_by:
        yield Check(name="explained", wrong=_explained(truth, incident))
    if truth.certainty:
        yield Check(name="certainty", wrong=_certainty(truth, incident))
    yield Check(name="victims", wrong=_victims(truth, said))


def _outcome(truth: Truth, ended: Ended, report: Report) -> str:
    if not truth.expect.alarms:
        alarms = "; ".join(f"{i.cause}: {i.summary}" for i in report.critical)
        if alarms:
            return f"false alarm: {alarms}"
        if ended.exit_code:
            return f"exit code {ended.exit_code} of a job that ends well"
        slowed = [i for i in report.incidents if i.slowness is not None and i.severity == "warning"]
        if slowed and truth.expect is Expect.HEALTHY:
            return f"ranks that are as fast as the others are called slow: {slowed[0].summary}"
        warned = any(incident.severity == "warning" for incident in report.incidents)
        return "no warning" if truth.expect is Expect.SLOW and not warned else ""
    if not report.critical:
        return f"no critical incident (exit code {ended.exit_code})"
    if truth.expect is Expect.HANG and ended.exit_code != EXIT_ABORTED:
        return f"exit code {ended.exit_code}, not {EXIT_ABORTED}"
    return "" if ended.exit_code else "exit code 0 of a crashed job"


def _culprit(truth: Truth, incident: Incident) -> str:
    said = {culprit.rank for culprit in incident.culprits}
    wanted = set(truth.culprits)
    right = bool(said) and said <= wanted if truth.culprits_any else said == wanted
    either = "one of " if truth.culprits_any else ""
    return "" if right else f"{sorted(said)}, not {either}{sorted(wanted)}"


def _cause(truth: Truth, incident: Incident) -> str:
    return "" if incident.cause in truth.cause else f"{incident.cause}, not {' or '.join(truth.cause)}"


def _slow_kind(truth: Truth, incident: Incident) -> str:
    said = incident.slowness.kind if incident.slowness is not None else "none"
    return "" if said in truth.slow_kind else f"{said}, not {' or '.join(truth.slow_kind)}"


def _call_sites(truth: Truth, incident: Incident) -> Iterator[str]:
    for culprit in incident.culprits:
        if culprit.rank not in truth.culprits:
            yield f"rank {culprit.rank} is no culprit"
        lines = truth.lines_of(culprit.rank) if culprit.rank in truth.culprits else ()
        if lines and not any(_same(culprit.call_site, line) for line in lines):
            said = culprit.call_site
            where = f"{Path(said.file).name}:{said.line}" if said else "none"
            yield f"rank {culprit.rank} at {where}, not {' or '.join(map(str, lines))}"


def _same(said: CallSite | None, line: Line) -> bool:
    # A report may show a path relative to the user's directory.
    return said is not None and said.line == line.number and Path(said.file).name == line.file.name


def _beside(root: Root, said: Sequence[Incident]) -> Incident | None:
    """Return the incident that tells of another fault, None if there is none."""
    return next(
        (each for each in said if each.cause in root.cause and {c.rank for c in each.culprits} <= set(root.culprits)),
        None,
    )


def _fix(truth: Truth, incident: Incident) -> str:
    advice = incident.advice.lower()
    if any(words in advice for words in truth.advice_any):
        return ""
    return f"none of {', '.join(map(repr, truth.advice_any))} in the advice {incident.advice!r}"


def _explained(truth: Truth, incident: Incident) -> str:
    missing = [words for words in truth.explained_by if words not in incident.explanation]
    return f"the explanation does not name {', '.join(missing)}: {incident.explanation!r}" if missing else ""


def _certainty(truth: Truth, incident: Incident) -> str:
    right = incident.certainty in truth.certainty
    return "" if right else f"{incident.certainty or 'none'}, not {' or '.join(truth.certainty)}"


def _victims(truth: Truth, said: Sequence[Incident]) -> str:
    accused = {culprit.rank for incident in said for culprit in incident.culprits}
    guilty = {*truth.culprits, *(rank for root in truth.besides for rank in root.culprits)}
    blamed = sorted(accused - guilty)
    return f"victims blamed: {blamed}" if blamed else ""


def _foretold(truth: Truth, ended: Ended, report: Report) -> str:
    if not truth.foretold:
        return "a hang was foretold that does not come"
    before_s = _foretold_s(truth, ended, report)
    if before_s is None:
        return "no warning named the cause and the ranks"
    return "" if before_s > 0 else f"the warning came {-before_s:.1f} s after the onset"


def _foretold_s(truth: Truth, ended: Ended, report: Report | Unreadable) -> float | None:
    """Return how long before the onset the first right prediction was told."""
    if isinstance(report, Unreadable) or not truth.foretold or ended.onset_at is None:
        return None
    right = [
        datetime.fromisoformat(incident.opened_at).timestamp()
        for incident in report.incidents
        if incident.predicted and not (_culprit(truth, incident) or _cause(truth, incident))
    ]
    return ended.onset_at - min(right) if right else None


def _clean(ended: Ended) -> Check:
    return Check(name="clean", wrong=f"left behind: {'; '.join(ended.leftovers)}" if ended.leftovers else "")
