"""Works out, in a thread, what an incident's page shows beside the incident itself."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Excerpt, MergedStack
from ncclwatch.contract.stacks.places import MAIN_THREAD, Place
from ncclwatch.contract.stacks.tree import Branch, Gang, tree
from ncclwatch.contract.words.text import seconds_words
from ncclwatch_server.evidence.stack_collection import where
from ncclwatch_server.incidents.book import Incident, IncidentState
from ncclwatch_server.ui.graph import Drawing, drawing_of
from ncclwatch_server.ui.log_links import log_url
from ncclwatch_server.ui.slack import slack_text

FACTS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of the timeline."""

    at: float  # seconds since 1970
    what: str
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What was observed, of all ranks of which the same was."""

    ranks: tuple[int, ...]
    fact: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Ranks whose main threads stand in one place, all of them blamed or none."""

    ranks: tuple[int, ...]
    place: Place
    blamed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentView:
    """One incident, ready to be shown."""

    incident: Incident
    drawing: Drawing | None
    excerpts: tuple[Excerpt, ...]  # of lines that are not shown where the histories differ
    places: tuple[Standing, ...]  # those of the culprits first
    branches: tuple[Branch, ...]  # of the main threads
    others: tuple[MergedStack, ...]  # of other threads, native frames, children
    facts: tuple[Fact, ...]
    more_facts: int
    timeline: tuple[Moment, ...]
    slack: str
    log_urls: Mapping[int, str]  # by rank of a culprit; {} where nobody said where logs are

    def excerpt(self, site: CallSite | None) -> Excerpt | None:
        """Return the source around a line of this verdict, None if nobody has read it."""
        return next((found for found in self.incident.verdict.excerpts if found.site == site), None)

    def blames(self, ranks: Iterable[int]) -> bool:
        """Whether the verdict names each of these ranks as a culprit."""
        return _culprits(self.incident).issuperset(ranks)


def view_incident(incident: Incident, url: str, logs: str = "") -> IncidentView:
    """Return what an incident's page shows. `logs` is the template of addresses of logs."""
    facts = tuple(_facts(incident))
    divergence = incident.verdict.first_divergence
    parted = (divergence.culprit_site, divergence.victim_site) if divergence is not None else ()
    return IncidentView(
        incident=incident,
        drawing=drawing_of(incident.verdict),
        excerpts=tuple(each for each in incident.verdict.excerpts if each.site not in parted),
        places=tuple(_standing(where(incident.stacks), _culprits(incident))),
        branches=tree(stack for stack in incident.stacks if stack.thread == MAIN_THREAD),
        others=tuple(stack for stack in incident.stacks if stack.thread != MAIN_THREAD),
        facts=facts[:FACTS_MAX],
        more_facts=max(0, len(facts) - FACTS_MAX),
        timeline=tuple(_timeline(incident)),
        slack=slack_text(incident, url),
        log_urls=_log_urls(incident, logs) if logs else {},
    )


def _log_urls(incident: Incident, template: str) -> dict[int, str]:
    at = incident.opened_at - incident.onset_to_open_s
    return {
        culprit.rank: log_url(
            template, at=at, job=incident.job, host=culprit.host, rank=str(culprit.rank), pid=str(culprit.pid or "")
        )
        for culprit in incident.verdict.culprits
    }


def _culprits(incident: Incident) -> frozenset[int]:
    return frozenset(culprit.rank for culprit in incident.verdict.culprits)


def _standing(found: tuple[Gang, ...], culprits: frozenset[int]) -> Iterator[Standing]:
    """Yield who stands where. Whom the verdict blames stands out, and not who merely differs from the others."""
    for blamed in (True, False):
        for gang in found:
            ranks = tuple(rank for rank in gang.ranks if (rank in culprits) is blamed)
            if ranks:
                yield Standing(ranks=ranks, place=gang.place, blamed=blamed)


def _facts(incident: Incident) -> Iterator[Fact]:
    together: dict[tuple[str, str], list[int]] = {}
    for evidence in incident.verdict.evidence:
        together.setdefault((evidence.fact, evidence.source), []).append(evidence.rank)
    for rank, failure in incident.unseen:
        together.setdefault((f"no stack: {failure}", "py-spy"), []).append(rank)
    for (fact, source), ranks in together.items():
        yield Fact(ranks=tuple(sorted(set(ranks))), fact=fact, source=source)


def _timeline(incident: Incident) -> Iterator[Moment]:
    verdict = incident.verdict
    if not verdict.predicted:
        yield Moment(at=incident.opened_at - incident.onset_to_open_s, what="the wait began", exact=False)
    told = f"reported, {seconds_words(incident.onset_to_open_s)} after the wait began"
    yield Moment(at=incident.opened_at, what="predicted" if verdict.predicted else told)
    if incident.closed_at is not None:
        ends = {IncidentState.RESOLVED: "the job went on", IncidentState.ENDED: "the job was over"}
        lasted = seconds_words(incident.closed_at - incident.opened_at)
        yield Moment(at=incident.closed_at, what=f"{ends.get(incident.state, 'closed')}, {lasted} after it was told")
    if incident.recovered_after_s is not None:
        went_on_at = incident.opened_at - incident.onset_to_open_s + incident.recovered_after_s
        after = seconds_words(incident.recovered_after_s)
        yield Moment(at=went_on_at, what=f"started again, the job went on: recovered after {after}", exact=False)
