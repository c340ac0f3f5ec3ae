"""Decides when a verdict opens an incident, changes one, and ends it. One hang is one incident.

Pure: time is passed in, and what changed is returned. An incident's id is a fingerprint of what
hangs, so that a server that was restarted in the middle of a hang finds the same one again.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ncclwatch.contract.model.verdict import Cause, Certainty, MergedStack, Severity, Verdict
from ncclwatch_server import limits

# Verdicts about how ranks ended. While a hung job dies they are consequences, not news.
_ENDINGS = frozenset({Cause.RANK_CRASHED, Cause.RANK_EXITED})
_SURE = {Certainty.PROVEN: 2, Certainty.STALLED: 1, Certainty.LATE: 0}
_MISSES_MAX = 2  # successive snapshots without it
_AFTERMATH_S = 15.0  # a job that dies so soon after a resolved hang dies of it


class IncidentState(str, Enum):
    """Where an incident is in its life."""

    OPEN = "open"
    RESOLVED = "resolved"  # the job went on
    ENDED = "ended"  # the job is over


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """What tells one attempt of one launch from all others."""

    name: str
    instance: str
    attempt: int
    run: int = 0  # how often somebody has started the launch again by hand since this server knows it


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One thing that is wrong with one job."""

    id: str
    key: JobKey
    job: str  # the name it is listed under
    world_size: int
    state: IncidentState
    verdict: Verdict
    onset_to_open_s: float
    opened_at: float  # seconds since 1970, for people
    closed_at: float | None = None
    reopened_at: float = 0.0  # likewise, when it came back after it had resolved; 0: it has not
    recovered_after_s: float | None = None  # from its onset until the job, started again, went on; None: unknown
    came_back_as: str = ""  # id of the same hang in a later attempt
    came_back_from: str = ""  # id of the same hang in an earlier attempt
    gpus: int = 0  # ranks that had a GPU of their own when it was opened
    saved: bool = False  # whether a rank had saved anything by then, since this attempt began
    timeout_s: float = 0.0  # after which the group that waits would have ended the job; 0: unknown
    end_seen: bool = True  # False: it ended while no server ran, and nobody knows when
    stacks: tuple[MergedStack, ...] = ()
    unseen: tuple[tuple[int, str], ...] = ()  # (rank, why there is no stack of it)
    user: str = ""  # whose job it is, as its environment says
    labels: str = ""  # of the job, such as "team=vision,run=42"
    misses: int = 0

    @property
    def open(self) -> bool:
        """Whether it still stands."""
        return self.state is IncidentState.OPEN

    @property
    def ranks(self) -> frozenset[int]:
        """Return everyone it speaks of."""
        return frozenset(c.rank for c in self.verdict.culprits) | frozenset(self.verdict.victims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A verdict that stands, and what its incident needs besides."""

    key: JobKey
    job: str
    world_size: int
    verdict: Verdict
    accounts: tuple[str, ...] = ()  # for whom it counts: see `jobs.room`
    delay_s: float = 0.0  # since the verdict was said
    stacks: tuple[MergedStack, ...] = ()
    unseen: tuple[tuple[int, str], ...] = ()
    user: str = ""
    labels: str = ""
    gpus: int = 0
    saved: bool = False
    timeout_s: float = 0.0


def worst_first(incidents: Iterable[Incident]) -> tuple[Incident, ...]:
    """Return incidents in the order in which a reader needs them: what is severe and explains most ranks first."""
    severities = tuple(Severity)
    return tuple(
        sorted(
            incidents,
            key=lambda each: (
                severities.index(each.verdict.severity),
                -each.verdict.explained[0],
                -_SURE[each.verdict.certainty],
                -each.opened_at,
                each.id,
            ),
        )
    )


def fingerprint(key: JobKey, verdict: Verdict) -> str:
    """Return the id of the incident that a verdict opens.

    What is critical keeps its id while more evidence changes its cause; two warnings about the same ranks are two.
    """
    if verdict.about:  # one finding is one incident, whoever else turns out to have a part in it
        about = (key.name, key.instance, key.attempt, verdict.severity.value, verdict.about)
        return hashlib.sha256(repr(about).encode("utf-8", "backslashreplace")).hexdigest()[:12]
    culprits = sorted(culprit.rank for culprit in verdict.culprits)
    kind = verdict.severity.value
    if verdict.slowness is not None:
        kind = "slow"  # and stays the same while it becomes worse
    elif verdict.severity is not Severity.CRITICAL:
        kind += f" {verdict.cause.value}"
    parts = (key.name, key.instance, key.attempt, kind, verdict.group, verdict.seq, culprits)
    return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()[:12]


class IncidentBook:
    """All incidents this server knows, bounded."""

    def __init__(self, known: Iterable[Incident] = ()) -> None:
        self._all: dict[str, Incident] = {incident.id: incident for incident in known}
        self._accounts: dict[str, tuple[str, ...]] = {}  # of the open ones, by id
        self._remembered = {each.id for each in self._all.values() if each.open}  # of a store, and not seen since
        self.refused = 0  # incidents that found no room

    def get(self, incident: str) -> Incident | None:
        """Return an incident by its id."""
        return self._all.get(incident)

    def all(self) -> tuple[Incident, ...]:
        """Return all incidents, the newest first."""
        return tuple(sorted(self._all.values(), key=lambda i: (-i.opened_at, i.id)))

    def open_of(self, key: JobKey) -> tuple[Incident, ...]:
        """Return the open incidents of one attempt of a job."""
        return tuple(i for i in self._all.values() if i.open and i.key == key)

    def open_by_job(self) -> dict[JobKey, list[Incident]]:
        """Return the open incidents of all jobs, in one look at them."""
        found: dict[JobKey, list[Incident]] = {}
        for incident in self._all.values():
            if incident.open:
                found.setdefault(incident.key, []).append(incident)
        return found

    def assign(
        self,
        key: JobKey,
        verdicts: Sequence[Verdict],
        now: float,
        taken: frozenset[str] = frozenset(),
        *,
        came_back: bool = False,
    ) -> tuple[Incident | None, ...]:
        """Return for each verdict of one judgement the known incident that it belongs to.

        Each root of a hang is an incident of its own, though the same ranks wait for several: no two verdicts share
        one, and those in `taken` belong to verdicts that are not among these. `came_back`: the job had been given up,
        so an incident that ended then may stand.
        """
        found = {n: same for n, each in enumerate(verdicts) if (same := self._same(key, each, now)) is not None}
        left = [n for n in range(len(verdicts)) if n not in found]
        for n in sorted(left, key=lambda n: not any(_share_culprits(verdicts[n], i) for i in self.open_of(key))):
            others = taken.union(each.id for each in found.values())
            known = self.match(key, verdicts[n], now, others, came_back=came_back)
            if known is not None:
                found[n] = known
        return tuple(found.get(n) for n in range(len(verdicts)))

    def _same(self, key: JobKey, verdict: Verdict, now: float) -> Incident | None:
        """Return the incident that this very verdict has opened, if it is open, or its ranks ended the job just now."""
        same = self._all.get(fingerprint(key, verdict))
        if same is None or same.open:
            return same
        return same if _is_ending(verdict) and _closed_just_now(same, now) else None

    def match(
        self,
        key: JobKey,
        verdict: Verdict,
        now: float,
        taken: frozenset[str] = frozenset(),
        *,
        came_back: bool = False,
    ) -> Incident | None:
        """Return the incident that a verdict belongs to, if it is known already and not in `taken` by another one."""
        if (known := self._same(key, verdict, now)) is not None:
            return known
        same = self._all.get(fingerprint(key, verdict))
        if same is not None and same.state is IncidentState.ENDED and not came_back:
            same = None  # of an earlier run under the same name
        ranks = frozenset(c.rank for c in verdict.culprits) | frozenset(verdict.victims)
        ending = _is_ending(verdict)
        mine = (each for each in self._all.values() if each.key == key)
        for incident in sorted(mine, key=lambda each: not _share_culprits(verdict, each)):
            if incident.verdict.severity is not verdict.severity:
                continue
            if incident.id in taken and (not ending or _is_ending(incident.verdict)):
                continue  # ranks that ended for reasons of their own are told apart
            if incident.verdict.slowness is not None:  # it is told apart
                continue
            stands = incident.open or (came_back and incident.state is IncidentState.ENDED)
            if stands and _same_wait(verdict, incident.verdict):
                return incident
            if stands and (ending or (ranks & incident.ranks and verdict.severity is Severity.CRITICAL)):
                return incident
            if ending and _closed_just_now(incident, now):
                return incident
        return same

    def insist(self, key: JobKey, verdict: Verdict) -> Verdict:
        """Return a verdict at least as urgent as the open incident about the same wait.

        A late rank that goes on to something else gets more time, and nobody is told that all is well meanwhile.
        """
        if verdict.certainty is not Certainty.LATE:
            return verdict
        for incident in self.open_of(key):
            said = incident.verdict
            if _same_wait(verdict, said) and said.lateness.rank > verdict.lateness.rank:
                return replace(verdict, severity=said.severity, lateness=said.lateness)
        return verdict

    def open(self, opening: Opening, now: float) -> Incident | None:
        """Open an incident, or return None if there is no room. `now` is in seconds since 1970."""
        if not self._has_room(opening):
            self.refused += 1
            return None
        incident = Incident(
            id=self._free_id(fingerprint(opening.key, opening.verdict)),
            key=opening.key,
            job=opening.job,
            world_size=opening.world_size,
            state=IncidentState.OPEN,
            verdict=opening.verdict,
            onset_to_open_s=opening.verdict.onset_s + opening.delay_s,
            opened_at=now,
            stacks=opening.stacks,
            unseen=opening.unseen,
            user=opening.user,
            labels=opening.labels,
            gpus=opening.gpus,
            saved=opening.saved,
            timeout_s=opening.timeout_s,
        )
        self._put(incident)
        if opening.accounts:
            self._accounts[incident.id] = opening.accounts
        return incident

    def _has_room(self, opening: Opening) -> bool:
        """Whether one more may be open: in all, of this job, and of each of those for whom it counts."""
        opened = [each.id for each in self._all.values() if each.open]
        if len(opened) >= limits.OPEN_MAX or len(self.open_of(opening.key)) >= limits.OPEN_PER_JOB_MAX:
            return False
        if not opening.accounts:
            return True
        held = Counter(account for accounts in self._accounts.values() for account in accounts)
        return all(held[account] < limits.OPEN_SHARE_MAX for account in opening.accounts)

    def update(self, incident: Incident, verdict: Verdict, shown: frozenset[str], now: float = 0.0) -> Incident | None:
        """Let a standing verdict confirm or improve its incident. Returns it if that is news.

        It is news that an incident of the store still stands: whoever was to be told of it may have heard nothing.
        `shown` are the ids of the incidents whose own verdict the judge still shows. `now` is in seconds since 1970.
        """
        changed = incident
        late = verdict.certainty is Certainty.LATE and incident.verdict.certainty is Certainty.LATE
        if not incident.open and verdict.cause not in _ENDINGS:
            changed = replace(changed, state=IncidentState.OPEN, closed_at=None, reopened_at=now)
        if late or _better(verdict, incident, incident.id in shown):
            changed = replace(changed, verdict=verdict)
        self._all[incident.id] = replace(changed, misses=0)
        if incident.id in self._remembered:
            self._remembered.discard(incident.id)
            return self._all[incident.id]
        if changed == incident or (late and changed.open == incident.open and not _moved_on(verdict, incident.verdict)):
            return None
        return self._all[incident.id]

    def attach(
        self, incident: str, stacks: tuple[MergedStack, ...], unseen: tuple[tuple[int, str], ...]
    ) -> Incident | None:
        """Add stacks that came after the opening."""
        known = self._all.get(incident)
        if known is None or (known.stacks, known.unseen) == (stacks, unseen):
            return None
        self._all[incident] = replace(known, stacks=stacks, unseen=unseen)
        return self._all[incident]

    def miss(
        self,
        key: JobKey,
        shown: frozenset[str],
        unheard: frozenset[int],
        now: float,
        over: frozenset[str] = frozenset(),
    ) -> tuple[Incident, ...]:
        """Count a snapshot that does not show incidents. Returns those that are resolved by it.

        Ranks of which there is no news are not well: what concerns them is not resolved, but for those in `over`.
        """
        resolved = []
        for incident in self.open_of(key):
            if incident.id in shown:
                self._put(replace(incident, misses=0))
                continue
            hidden = incident.ranks & unheard and incident.id not in over
            if hidden or incident.verdict.slowness is not None:
                continue
            missed = replace(incident, misses=incident.misses + 1)
            if missed.misses >= _MISSES_MAX:
                missed = replace(missed, state=IncidentState.RESOLVED, closed_at=now)
                resolved.append(missed)
            self._put(missed)
        return tuple(resolved)

    def close(self, key: JobKey, state: IncidentState, now: float) -> tuple[Incident, ...]:
        """Close the open incidents of an attempt: it is over, or the job went on, which says nothing of its pace."""
        mine = (i for i in self.open_of(key) if i.verdict.slowness is None or state is IncidentState.ENDED)
        return tuple(self.end(incident, state, now) for incident in mine)

    def slow_of(self, key: JobKey) -> tuple[Incident, ...]:
        """Return the open incidents about what slows an attempt down without stopping it."""
        return tuple(i for i in self.open_of(key) if i.verdict.slowness is not None)

    def say(self, incident: Incident, verdict: Verdict) -> Incident:
        """Replace what is said of an open incident. Returns it."""
        self._remembered.discard(incident.id)
        return self.amend(replace(incident, verdict=verdict))

    def is_remembered(self, incident: Incident) -> bool:
        """Say whether an incident is of a store, and has not been seen since it was read."""
        return incident.id in self._remembered

    def amend(self, incident: Incident) -> Incident:
        """Replace what is known of an incident. Returns it."""
        self._put(incident)
        return incident

    def end(self, incident: Incident, state: IncidentState, now: float) -> Incident:
        """Close one incident. Returns it."""
        return self.amend(replace(incident, state=state, closed_at=now))

    def recall(self, known: Iterable[Incident]) -> tuple[Incident, ...]:
        """Add incidents of earlier that were not at hand, and return them. What is known of one already is newer."""
        added = tuple(incident for incident in known if incident.id not in self._all)
        for incident in added:
            self._put(incident)
            if incident.open:
                self._remembered.add(incident.id)
        return added

    def forget(self, job: str) -> int:
        """Forget the incidents of a job, by the name it is listed under. Returns how many there were."""
        gone = [incident.id for incident in self._all.values() if incident.job == job]
        for incident_id in gone:
            del self._all[incident_id]
            self._closed(incident_id)
        return len(gone)

    def expire(self, before: float, per_job: int) -> None:
        """Forget closed incidents that the store does not keep either: older ones, and the oldest of too many."""
        counts: Counter[str] = Counter()
        for incident in self.all():  # the newest first
            if incident.open:
                continue
            counts[incident.job] += 1
            if (incident.closed_at or incident.opened_at) < before or counts[incident.job] > per_job:
                del self._all[incident.id]

    def _closed(self, incident_id: str) -> None:
        """Let go of what is known of open incidents only."""
        self._accounts.pop(incident_id, None)
        self._remembered.discard(incident_id)

    def _put(self, incident: Incident) -> None:
        self._all[incident.id] = incident
        if not incident.open:
            self._closed(incident.id)
        closed = [i for i in self._all.values() if not i.open]
        if len(closed) > limits.CLOSED_KEPT_MAX:
            del self._all[min(closed, key=lambda i: i.closed_at or 0.0).id]

    def _free_id(self, wanted: str) -> str:
        """Return the id, with a number if an earlier run under the same name hung in the same place."""
        taken, number = wanted, 1
        while taken in self._all:
            number += 1
            taken = f"{wanted}-{number}"
        return taken


def _is_ending(verdict: Verdict) -> bool:
    return verdict.cause in _ENDINGS and verdict.severity is Severity.CRITICAL


def _closed_just_now(incident: Incident, now: float) -> bool:
    """Say whether it closed within seconds. By another clock, or before one was set, it may be a time to come."""
    return incident.closed_at is not None and abs(now - incident.closed_at) <= _AFTERMATH_S


def _share_culprits(verdict: Verdict, incident: Incident) -> bool:
    """Whether a verdict names somebody whom an open incident names, too."""
    named = {culprit.rank for culprit in incident.verdict.culprits} if incident.open else set()
    return any(culprit.rank in named for culprit in verdict.culprits)


def _same_wait(verdict: Verdict, other: Verdict) -> bool:
    """Whether two verdicts are about one wait for ranks that work: some of these may have come meanwhile."""
    late = verdict.certainty is Certainty.LATE and other.certainty is Certainty.LATE
    late = late and verdict.predicted == other.predicted
    late = late and verdict.slowness is None and other.slowness is None
    return late and (verdict.group, verdict.seq) == (other.group, other.seq)


def _moved_on(verdict: Verdict, before: Verdict) -> bool:
    """Whether more than the time has passed since an earlier verdict on the same wait."""
    places = [[(culprit.rank, culprit.call_site) for culprit in each.culprits] for each in (verdict, before)]
    return verdict.lateness is not before.lateness or places[0] != places[1]


def _culprits(verdict: Verdict) -> set[int]:
    return {culprit.rank for culprit in verdict.culprits}


def _traced(verdict: Verdict) -> set[int]:
    return {culprit.rank for culprit in verdict.culprits if culprit.traced}


def _better(verdict: Verdict, incident: Incident, still_shown: bool) -> bool:
    """Whether a verdict's text should replace the one of its incident."""
    old = incident.verdict
    if verdict.about:
        return verdict != old
    if verdict.cause in _ENDINGS and old.cause not in _ENDINGS | {Cause.UNDETERMINED}:
        return False
    if verdict.disputed != old.disputed:
        return verdict.disputed  # what another witness has said stays said
    if _SURE[verdict.certainty] != _SURE[old.certainty]:
        return _SURE[verdict.certainty] > _SURE[old.certainty]
    if verdict.cause is not old.cause and Cause.UNDETERMINED in (verdict.cause, old.cause):
        return old.cause is Cause.UNDETERMINED
    if verdict.one_of != old.one_of:
        return old.one_of
    if verdict.cause is old.cause and _traced(verdict) != _traced(old):
        return True  # a debugger has come or gone
    if verdict.explained[0] != old.explained[0]:
        return verdict.explained[0] > old.explained[0]
    if verdict.cause is old.cause and verdict.explained == (0, 0) and _culprits(verdict) > _culprits(old):
        return True  # nothing hangs, and more ranks have been seen to do it
    # Equally good. The older text stays as long as the judge still says it.
    return not still_shown and (verdict.cause, verdict.culprits) != (old.cause, old.culprits)
