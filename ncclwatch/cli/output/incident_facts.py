"""Chooses what a report says of an incident, in which order, for Markdown and HTML: only the writing differs."""

from collections.abc import Iterator
from dataclasses import dataclass

from ncclwatch.cli.client.answers import Whole
from ncclwatch.contract.model.rank import CallSite, StackFrame
from ncclwatch.contract.model.verdict import MergedStack
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch.contract.stacks.places import is_python
from ncclwatch.contract.words.aftermath import aftermath_words, cost_words
from ncclwatch.contract.words.repairs import deed_words, reference_words
from ncclwatch.contract.words.text import group_words, rank_list, ranks_words

EVIDENCE_MAX = 200
CULPRITS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritRow:
    """A culprit as a row of a table."""

    rank: str
    host: str
    pid: str
    device: str
    place: str
    doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame of a stack, as a line."""

    text: str
    users: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A stack with the ranks that share it."""

    title: str
    frames: tuple[Frame, ...]


def heading(incident: Whole) -> str:
    """Return the sentence that says it all."""
    return f"{incident.severity.upper()} {incident.summary}"


def facts(incident: Whole) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of what is short."""
    yield "incident", incident.id
    yield "job", incident.job
    yield "state", incident.state
    yield "opened", incident.opened_at
    if incident.closed_at:
        yield "closed", incident.closed_at
    after = aftermath_words(incident.recovered_after_s, incident.came_back_as, incident.came_back_from)
    if after:
        yield "restart", after
    if incident.lost_s is not None and incident.world_size:
        yield "lost", cost_words(incident.lost_s, incident.world_size, incident.gpus)
    yield "cause", incident.cause
    yield "certainty", certainty(incident)
    if incident.op:
        yield (
            "operation",
            f"number {incident.seq} of {group_words(incident.group, incident.group_title)}: {incident.op}",
        )
    if incident.victims:
        yield "waiting", ranks_words(incident.victims)
    if incident.where:
        yield "where", incident.where


def certainty(incident: Whole) -> str:
    """Return how sure the verdict is, in words."""
    if incident.predicted:
        return "predicted: nothing hangs yet"
    explained, blocked = incident.explains
    said = incident.certainty + (", disputed by a second source" if incident.disputed else "")
    if explained < blocked:
        said += f", explains {explained} of {blocked} blocked ranks"
    return f"{said}; reported {incident.onset_to_open_s:.1f} s after the wait began"


def culprits(incident: Whole) -> Iterator[CulpritRow]:
    """Yield who keeps the others waiting."""
    for culprit in incident.culprits[:CULPRITS_MAX]:
        yield CulpritRow(
            rank=str(culprit.rank), host=culprit.host, pid=str(culprit.pid or ""), device=culprit.device,
            place=place(culprit.call_site), doing=culprit.doing,
        )  # fmt: skip


def culprits_title(incident: Whole) -> str:
    """Return what the culprits are."""
    more = len(incident.culprits) - CULPRITS_MAX
    said = "One of these keeps the others waiting" if incident.one_of else "Who keeps the others waiting"
    return said + (f" ({CULPRITS_MAX} of {len(incident.culprits)})" if more > 0 else "")


def divergence(incident: Whole) -> Iterator[str]:
    """Yield where the histories parted, a line each."""
    found = incident.first_divergence
    if found is None:
        return
    yield f"Number {found.seq} of {group_words(found.group, found.group_title)}: {found.fact}"
    for side, op, site in (
        ("culprit", found.culprit_op, found.culprit_site),
        ("others", found.victim_op, found.victim_site),
    ):
        if op or site is not None:
            yield f"{side}: {op or 'nothing'} at {place(site)}"


def repairs(incident: Whole) -> Iterator[str]:
    """Yield the smallest change to what one rank did after which all would have gone on, a line for each rank."""
    for repair in incident.repairs[:CULPRITS_MAX]:
        yield " ".join(filter(None, (f"rank {repair.rank} {deed_words(repair)}.", reference_words(repair))))


def evidence(incident: Whole) -> Iterator[str]:
    """Yield what was observed, one line for all ranks of which the same was."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for each in incident.evidence:
        ranks.setdefault((each.fact, each.source), []).append(each.rank)
    for number, ((fact, source), who) in enumerate(ranks.items()):
        if number == EVIDENCE_MAX:
            yield f"and {len(ranks) - EVIDENCE_MAX} more, in the JSON"
            return
        yield f"{ranks_words(who)}: {fact} ({source})"


def stacks(incident: Whole) -> Iterator[Block]:
    """Yield the stacks, the innermost frame first."""
    for stack in incident.stacks:
        yield Block(title=_title(stack), frames=tuple(map(_frame, stack.frames)))


def place(site: CallSite | None) -> str:
    """Return a line of the user's code."""
    return f"{site.file}:{site.line} in {site.function}()" if site is not None else "an unknown line"


def _title(stack: MergedStack) -> str:
    return f"rank{'s' if len(stack.ranks) > 1 else ''} {rank_list(stack.ranks)}, thread {stack.thread}"


def _frame(frame: StackFrame) -> Frame:
    python = is_python(frame)
    line = f":{frame.line}" if frame.line or python else ""
    return Frame(text=f"{frame.function} ({frame.file}{line})", users=python and is_users_by_path(frame.file))
