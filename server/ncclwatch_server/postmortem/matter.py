"""All that is known of a hung job, and how its parts are called in words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import CallSite, Ending, RankView, StackDump
from ncclwatch.contract.model.verdict import Evidence
from ncclwatch.contract.words.text import ranks_words, seconds_words
from ncclwatch_server.offline.logs import SharedDevice
from ncclwatch_server.offline.recording import GroupKey, Issued, Recording
from ncclwatch_server.offline.snapshot import age_s, group_names, is_age_known, keys_of, snapshot_of
from ncclwatch_server.postmortem.frontier import DEFAULT_GROUP, Stuck, stuck_operations, with_members
from ncclwatch_server.postmortem.roots import Waits, waits_of

HANG_S_MIN = 5.0  # a live job is now and then caught waiting for less than this
WAITING_S_MIN = 0.5  # and for less than this at every moment
EVIDENCE_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What is known of ranks besides the operations they recorded."""

    stacks: Mapping[int, StackDump] = field(default_factory=dict)
    endings: Mapping[int, Ending] = field(default_factory=dict)
    views: Mapping[int, RankView] = field(default_factory=dict)  # of ranks that left a ring
    lags: Mapping[int, float] = field(default_factory=dict)  # seconds by which a pulse stopped before the others
    shared: tuple[SharedDevice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Matter:
    """One job as its files show it."""

    recordings: Mapping[int, Recording]
    waits: Waits
    names: Mapping[GroupKey, str]
    world: tuple[int, ...]
    witness: Witness

    def snapshot(self, ranks: Iterable[int]) -> JobSnapshot:
        """Return what the judge of live jobs gets of these ranks; rings tell more than a recording does."""
        chosen = set(ranks)
        snapshot = snapshot_of(self.recordings, chosen, self.names, self.world)
        rings = {rank: view for rank, view in self.witness.views.items() if rank in chosen}
        if set(rings) == set(snapshot.ranks) and all(name == key.name for key, name in self.names.items()):
            snapshot = replace(snapshot, ranks=rings)
        return replace(snapshot, stacks=self.witness.stacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """For how long ranks had waited when their files were written."""

    seconds: float
    known: bool  # the times of the files can be trusted

    @property
    def too_short(self) -> bool:
        """Whether a healthy job looks the same."""
        return self.known and self.seconds < HANG_S_MIN


def open_matter(recordings: Mapping[int, Recording], witness: Witness) -> Matter:
    """Return the matter of these recordings."""
    complete = with_members(recordings)
    told = max((each.world for each in complete.values()), key=len, default=())
    world = told or tuple(range(max((*complete, *witness.endings), default=-1) + 1))
    names = group_names(key for recording in complete.values() for key in keys_of(recording))
    waits = waits_of(stuck_operations(complete))
    return Matter(recordings=complete, waits=waits, names=names, world=world, witness=witness)


def waited(matter: Matter, operations: Iterable[Stuck]) -> Waited:
    """Return for how long all ranks in these operations had waited, each by its own clock."""
    found = [(matter.recordings[rank], issued) for each in operations for rank, issued in each.waiting.items()]
    if not found or not all(is_age_known(recording) for recording, _ in found):
        return Waited(seconds=0.0, known=False)
    return Waited(seconds=min(age_s(recording, issued) for recording, issued in found), known=True)


def group_words(matter: Matter, stuck_key: GroupKey, desc: str) -> str:
    """Return how a group is called."""
    if desc == DEFAULT_GROUP:
        return "the default group"
    return f"group {desc}" if desc not in ("", "undefined") else f"group {matter.names.get(stuck_key, stuck_key.name)}"


def stuck_words(matter: Matter, stuck: Stuck) -> str:
    """Return "all_reduce #7 of group tp", or "send from rank 0 to rank 1"."""
    if stuck.source >= 0:
        return f"{stuck.op.value} from rank {stuck.source} to rank {stuck.target}"
    return f"{op_name(stuck.issued)} #{stuck.seq} of {group_words(matter, stuck.roster.key, stuck.roster.desc)}"


def op_name(issued: Issued) -> str:
    """Return what an operation is called: as users type it, or as recorded where that is not known."""
    return issued.signature.op.value if issued.signature.op.value != "unknown" else issued.signature.name


def at(site: CallSite | None) -> str:
    """Return " at file:line in function()", or nothing."""
    return f" at {site}" if site is not None else ""


def last_words(matter: Matter, rank: int) -> str:
    """Return the newest operation of a rank in words, "" if it has none."""
    newest = matter.recordings[rank].newest
    if newest is None:
        return ""
    key, issued = newest
    desc = matter.recordings[rank].groups[key].desc
    return f"{op_name(issued)} #{issued.seq} of {group_words(matter, key, desc)}{at(issued.site)}"


def waiting_words(matter: Matter, operations: Iterable[Stuck]) -> str:
    """Return "ranks 0-2 wait in all_reduce #7 of group tp at train.py:44 in step()", a phrase for each place."""
    places: dict[tuple[str, str], set[int]] = {}
    for each in operations:
        for rank, issued in each.waiting.items():
            places.setdefault((stuck_words(matter, each), at(issued.site)), set()).add(rank)
    phrases = [
        f"{ranks_words(ranks)} {'wait' if len(ranks) > 1 else 'waits'} in {what}{where}"
        for (what, where), ranks in sorted(places.items(), key=lambda item: -len(item[1]))
    ]
    return "; ".join([*phrases[:3], "others elsewhere"] if len(phrases) > 3 else phrases)


def waiting_evidence(matter: Matter, operations: Iterable[Stuck]) -> list[Evidence]:
    """Return what the files of the ranks in these operations say, of some of them."""
    facts = []
    for each in operations:
        for rank, issued in sorted(each.waiting.items()):
            recording = matter.recordings[rank]
            long = f" for {seconds_words(age_s(recording, issued))}" if is_age_known(recording) else ""
            started = ", started on the device" if issued.started else ""
            fact = f"in {stuck_words(matter, each)}{at(issued.site)}{long}{started}"
            facts.append(Evidence(source=recording.source, rank=rank, fact=fact))
            if len(facts) == EVIDENCE_MAX:
                return facts
    return facts
