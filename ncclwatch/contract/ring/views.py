"""Says what the rows of a ring mean: numbers become names, string ids call sites, stamps ages.

The same for the ring of a rank that runs, which the agent reads, and for one that a rank left behind.
What the kernel says of the process is no part of it.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ncclwatch.contract import config, foreign_json
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.rank import (
    CallSite,
    Ending,
    GroupView,
    LoaderView,
    ModuleView,
    Op,
    OpView,
    PeerView,
    ProcessState,
    ProcessView,
    RankView,
    ThreadView,
    WaitView,
)
from ncclwatch.contract.ring import facts
from ncclwatch.contract.ring.call_sites import Routes, parse, read_routes
from ncclwatch.contract.ring.layout import NO_GROUP, Flag, LoaderFlag, PeerFlag, Word, waited_span
from ncclwatch.contract.ring.modules import parse as parse_module
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.rows import BucketRow, EventRow, GroupRow, PeerRow, ThreadRow, WaitRow, named_apart

TEXTS_KNOWN_MAX = 512
MODES_MAX = 4  # modules whose mode a sample tells
_PHASES = frozenset(phase.value for phase in Phase)
_ENDINGS = frozenset(("exited", "crashed", "signalled", "vanished"))
PENDING_SCAN_MAX = 2048  # events looked at for the oldest unfinished operation of a group, or message to a peer


@functools.lru_cache(maxsize=TEXTS_KNOWN_MAX)  # hundreds of operations of a view are of a few lines
def parse_site(text: str) -> CallSite | None:
    """Return the call site that a string of the ring stands for, None if it is some other text."""
    site = parse(text)
    return CallSite(file=site.file, line=site.line, function=site.function) if site is not None and site.file else None


@functools.lru_cache(maxsize=TEXTS_KNOWN_MAX)
def parse_label(text: str) -> str:
    """Return what an operation is for, by the text of its call site; "" if that is not known."""
    site = parse(text)
    return site.label if site is not None else ""


def age_s(now_ns: int, then_ns: int) -> float:
    """Return how old a stamp is; 0 for one that was never set."""
    return max(0.0, (now_ns - then_ns) / 1e9) if then_ns else 0.0


def pending_event(ring: Ring, group: GroupRow) -> EventRow | None:
    """Return the oldest unfinished collective of a group, found backwards from its newest; None: none in reach."""
    if group.newest_event < 0 or group.completed >= group.enqueued:
        return None
    oldest = None
    stop = max(-1, group.newest_event - PENDING_SCAN_MAX, ring.words()[Word.EVENTS_HEAD] - config.EVENTS_MAX - 1)
    for index in range(group.newest_event, stop, -1):
        event = ring.event(index)
        if event is None or event.group != group.number or event.op.is_p2p:
            continue
        if event.seq <= group.completed:
            break
        oldest = event
        if event.seq == group.completed + 1:
            break
    return oldest


def pending_message(ring: Ring, row: PeerRow, op: Op) -> EventRow | None:
    """Return the oldest unfinished send to a peer, or receive from it, found backwards; None: none in reach."""
    left = row.sends - row.sends_completed if op is Op.SEND else row.recvs - row.recvs_completed
    head = ring.words()[Word.EVENTS_HEAD]
    for index in range(head - 1, max(-1, head - PENDING_SCAN_MAX - 1, head - config.EVENTS_MAX - 1), -1):
        event = ring.event(index) if left > 0 else None
        if event is not None and (event.group, event.peer, event.op) == (row.group, row.peer, op):
            left -= 1
            if left == 0:
                return event
    return None


class Place(NamedTuple):
    """What the string of a call site says of the operations that were made there."""

    site: CallSite | None
    route: int  # see `OpView.route`
    label: str
    module: int  # see `OpView.module`


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The rows of one ring, read at one moment, that the views below are made of."""

    ring: Ring
    now_ns: int
    words: tuple[int, ...]
    groups: tuple[GroupRow, ...]
    threads: tuple[ThreadRow, ...]
    peers: tuple[PeerRow, ...]
    routes: Routes = field(default_factory=Routes)
    history_max: int = config.HISTORY_MAX  # operations in a view
    places: dict[int, Place] = field(default_factory=dict)  # those of `place`: hundreds of operations are of a few

    @classmethod
    def of(cls, ring: Ring, now_ns: int, history_max: int = config.HISTORY_MAX) -> "Picture":
        """Read all small tables of a ring; the events are left where they are."""
        return cls(
            ring=ring,
            now_ns=now_ns,
            history_max=history_max,
            words=ring.words(),
            groups=named_apart(ring.groups()),
            threads=tuple(ring.threads()),
            peers=tuple(ring.peers()),
            routes=read_routes(ring.strings(), config.SITES_MAX),
        )

    def age_s(self, then_ns: int) -> float:
        """Return how old a stamp is at this moment."""
        return age_s(self.now_ns, then_ns)

    def group_name(self, number: int) -> str:
        """Return the name of the group with this row number, "" for none."""
        return self.groups[number].name if number != NO_GROUP and number < len(self.groups) else ""

    def site(self, offset: int) -> CallSite | None:
        """Return the call site with this string id."""
        return parse_site(self.ring.string(offset))

    def label(self, offset: int) -> str:
        """Return what the operation with this call site is for."""
        return parse_label(self.ring.string(offset))

    def place(self, offset: int) -> Place:
        """Return what the call site with this string id says."""
        found = self.places.get(offset)
        if found is None:
            routes = self.routes
            found = Place(self.site(offset), routes.of(offset), self.label(offset), routes.module_of(offset))
            self.places[offset] = found
        return found

    def text(self, word: int) -> str:
        """Return the text whose id is the live word with this index."""
        return self.ring.string(self.words[word])

    def is_completed(self, event: EventRow) -> bool:
        """Whether an operation is through, by the counters of its group or of its peer."""
        if event.op.is_p2p:
            row = self._peer_of(event)
            done = 0 if row is None else row.sends_completed if event.op is Op.SEND else row.recvs_completed
            return event.seq <= done
        return event.group < len(self.groups) and event.seq <= self.groups[event.group].completed

    def is_in_order(self, event: EventRow) -> bool:
        """Whether what its thread issues later, in any group, comes after an operation on a device."""
        row = self._peer_of(event) if event.op.is_p2p else None
        if row is None:
            return event.in_order
        sends = event.op is Op.SEND
        first, last = waited_span(*((row.sends_waited, row.sends) if sends else (row.recvs_waited, row.recvs)))
        return event.in_order or first <= event.seq <= last

    def _peer_of(self, event: EventRow) -> PeerRow | None:
        return next((row for row in self.peers if (row.group, row.peer) == (event.group, event.peer)), None)


def rank_view(picture: Picture) -> RankView:
    """Return everything that a ring tells of its rank; whether its process runs is for others to say."""
    ring, words, header = picture.ring, picture.words, picture.ring.header
    exception, exception_s, exception_site = newest_exception(picture)
    told = facts.parse(picture.text(Word.FACTS))
    return RankView(
        rank=header.rank,
        local_rank=header.local_rank,
        host=ring.identity().get("host", ""),
        pid=header.pid,
        device=picture.text(Word.DEVICE),
        world_size=header.world_size,
        local_world_size=header.local_world_size,
        attempt=header.attempt,
        process=ProcessView(state=ProcessState.UNKNOWN),
        pulse_age_s=picture.age_s(words[Word.PULSE_NS] or header.created_ns),
        initialised=words[Word.INITIALISED] == 1,
        threads=tuple(thread_view(picture, row) for row in picture.threads),
        groups=group_views(picture),
        peers=peer_views(picture),
        loaders=loader_views(picture),
        history=history(picture),
        sites=all_sites(ring),
        routes=picture.routes.frames,
        modules=picture.routes.modules,
        modes=module_modes(picture),
        steps=words[Word.STEPS],
        forwards=words[Word.FORWARDS],
        phase=picture.text(Word.PHASE),
        phase_s=picture.age_s(words[Word.PHASE_NS]) if words[Word.PHASE] else 0.0,
        last_exception=exception,
        last_exception_s=exception_s,
        last_exception_site=exception_site,
        endpoint=picture.text(Word.ENDPOINT),
        timeout_s=words[Word.TIMEOUT_MS] / 1000,
        dropped=words[Word.DROPPED],
        cuda=told.device,
        rng=told.rng,
        ended_thread=replace(told.thread, age_s=picture.age_s(told.thread_ns)) if told.thread is not None else None,
        groups_counted=words[Word.GROUPS_COUNTED],
        groups_held=words[Word.GROUPS_HELD],
        keys_set=told.keys,
        free_threads=words[Word.FREE_THREADS],
    )


def wait_view(picture: Picture, wait: WaitRow) -> WaitView:
    """Return what a thread is inside of."""
    return WaitView(
        kind=wait.kind,
        age_s=picture.age_s(wait.since_ns),
        group=picture.group_name(wait.group),
        seq=wait.seq,
        op=Op.UNKNOWN if wait.group == NO_GROUP else wait.op,
        peer=wait.peer,
        site=picture.site(wait.site),
        route=picture.routes.of(wait.site),
        label=picture.label(wait.site),
        members=wait.members,
    )


def op_view(picture: Picture, event: EventRow) -> OpView:
    """Return one operation of the ring's history."""
    thread = next((row.tid for row in picture.threads if row.number == event.thread), 0)
    place = picture.place(event.site)
    return OpView(
        group=picture.group_name(event.group),
        seq=event.seq,
        op=event.op,
        dtype=event.dtype,
        numel=event.numel,
        peer=event.peer,
        reduce_op=event.reduce_op,
        site=place.site,
        route=place.route,
        label=place.label,
        module=place.module,
        thread=thread,
        batch=event.batch,
        loader=event.loader,
        forwards=event.forwards,
        completed=picture.is_completed(event),
        in_order=picture.is_in_order(event),
        age_s=picture.age_s(event.time_ns),
    )


def history(picture: Picture) -> tuple[OpView, ...]:
    """Return the newest operations of the rank, newest last."""
    own = {row.number: row.issued for row in picture.threads}
    found: list[OpView] = []
    for event in reversed(picture.ring.events(picture.history_max)):
        view = op_view(picture, event)
        own[event.thread] = own.get(event.thread, 0) - 1
        # What is more than its thread has issued is of one that had the row before, and has ended.
        found.append(view if own[event.thread] >= 0 else replace(view, thread=0, in_order=False))
    return tuple(reversed(found))


def group_views(picture: Picture) -> tuple[GroupView, ...]:
    """Return the rank's frontier in each of its groups, with the oldest unfinished operation."""
    views = []
    for row in picture.groups:
        event = None if row.flags & Flag.BLIND else pending_event(picture.ring, row)
        views.append(
            GroupView(
                name=row.name,
                desc=row.desc,
                ranks=row.roster.ranks,
                runs=row.roster.runs,
                size=row.roster.size,
                members_digest=row.roster.digest,
                enqueued=row.enqueued,
                completed=row.completed,
                prefix_hash=row.prefix_hash,
                pending=op_view(picture, event) if event else None,
                destroyed=bool(row.flags & Flag.DESTROYED),
                late=bool(row.flags & Flag.LATE),
                blind=bool(row.flags & Flag.BLIND),
                asynchronous=bool(row.flags & Flag.ASYNC),
                timeout_s=row.timeout_ms / 1000,
                site=picture.site(row.site),
            )
        )
    return tuple(views)


def peer_views(picture: Picture) -> tuple[PeerView, ...]:
    """Return the p2p counters of the rank."""
    return tuple(_peer_view(picture, row) for row in picture.peers)


def _peer_view(picture: Picture, row: PeerRow) -> PeerView:
    blind = row.group >= len(picture.groups) or picture.groups[row.group].flags & Flag.BLIND
    flags = 0 if blind else row.flags
    sending = pending_message(picture.ring, row, Op.SEND) if flags & PeerFlag.SENDING else None
    receiving = pending_message(picture.ring, row, Op.RECV) if flags & PeerFlag.RECEIVING else None
    return PeerView(
        group=picture.group_name(row.group),
        peer=row.peer,
        sends=row.sends,
        sends_completed=min(row.sends, row.sends_completed),
        recvs=row.recvs,
        recvs_completed=min(row.recvs, row.recvs_completed),
        told=bool(flags & PeerFlag.TOLD),
        sending=op_view(picture, sending) if sending is not None else None,
        receiving=op_view(picture, receiving) if receiving is not None else None,
    )


def loader_views(picture: Picture) -> tuple[LoaderView, ...]:
    """Return the places that iterate over a DataLoader, in the order of `OpView.loader`."""
    buckets = picture.ring.buckets()
    return tuple(
        LoaderView(
            site=picture.site(row.site) or CallSite(file="", line=0, function=""),
            passes=row.passes,
            drawn=row.drawn,
            exhausted=row.passes > 0 and row.ended_pass == row.passes,
            last_drawn=row.last_drawn,
            length=row.length,
            even=bool(row.flags & LoaderFlag.EVEN),
            buckets=bucket_counts(buckets, row.number, row.passes),
        )
        for row in picture.ring.loaders()
    )


def bucket_counts(rows: Iterable[BucketRow], loader: int, passes: int) -> tuple[tuple[str, int], ...]:
    """Return (data bucket, batches) of one pass over one loader, the largest first."""
    found = [(row.name, row.drawn) for row in rows if (row.loader, row.passes) == (loader, passes) and row.drawn]
    return tuple(sorted(found, key=lambda each: (-each[1], each[0])))


def bucket_costs(rows: Iterable[BucketRow], loader: int) -> tuple[tuple[str, int, float], ...]:
    """Return (data bucket, batches timed, seconds worked on them) of one loader, those that took longest first."""
    found = [(row.name, row.timed, row.worked_ns / 1e9) for row in rows if row.loader == loader and row.timed]
    return tuple(sorted(found, key=lambda each: -each[2]))[: config.COSTS_MAX]


def thread_view(picture: Picture, row: ThreadRow) -> ThreadView:
    """Return one thread: what it waits in, and what its stack showed when the pulse last looked."""
    view = ThreadView(
        tid=row.tid,
        main=row.main,
        issued=row.issued,
        wait=wait_view(picture, row.wait) if row.wait else None,
    )
    sample = picture.ring.sample(row.number)
    if sample is None:
        return view
    since_ns, found = sample
    if found.get("issued", row.issued) != row.issued:  # it has gone on since, and nobody has looked again
        return replace(view, name=_text(found.get("name")))
    # The pulse thread last looked when it last ran: what it saw unchanged ends there.
    looked_ns = max(picture.words[Word.PULSE_NS], since_ns)
    frames = _frames(found.get("frames"))
    return replace(
        view,
        doing=frames[0] if frames else None,
        frames=frames,
        leaf=_text(found.get("leaf")),
        calling=_text(found.get("call")),
        same_s=age_s(looked_ns, since_ns),
        name=_text(found.get("name")),
        work=_work(found.get("work")),
        module=parse_module(_text(found.get("module"))),
        exception=_text(found.get("exc")),
        exception_site=call_site(found.get("exc_file"), found.get("exc_line"), found.get("exc_function")),
        exception_path=_text(found.get("exc_path")),
    )


def _frames(value: object) -> tuple[CallSite, ...]:
    """Return the user's frames out of a sample: a list of [file, line, function], innermost first."""
    found = [
        call_site(*entry)
        for entry in (value if isinstance(value, list) else [])
        if isinstance(entry, list) and len(entry) == 3
    ]
    return tuple(site for site in found if site is not None)[: config.STACK_DEPTH_MAX]


def _work(value: object) -> Phase | None:
    return Phase(value) if isinstance(value, str) and value in _PHASES else None


def module_modes(picture: Picture) -> tuple[ModuleView, ...]:
    """Return the modes of the modules that make collectives, where a thread has stood still."""
    for row in picture.threads:
        sample = picture.ring.sample(row.number)
        texts = sample[1].get("modes") if sample is not None else None
        if isinstance(texts, list) and texts:
            return tuple(found for text in texts[:MODES_MAX] if (found := parse_module(_text(text))) is not None)
    return ()


def newest_exception(picture: Picture) -> tuple[str, float, CallSite | None]:
    """Return (text, age, site) of the newest exception that the rank handled and went on."""
    sample = picture.ring.sample(config.THREADS_MAX)
    if sample is None or not sample[1].get("exc"):
        return "", 0.0, None
    since_ns, found = sample
    site = call_site(found.get("exc_file"), found.get("exc_line"), found.get("exc_function"))
    return _text(found.get("exc")), picture.age_s(since_ns), site


def parse_note(text: str) -> Ending | None:
    """Return what a rank's exit hooks wrote of its end, None if they wrote nothing readable."""
    found = foreign_json.read(text)
    if not isinstance(found, dict):
        return None
    code, exception, kind = found.get("exit_code"), _text(found.get("exception")), found.get("kind")
    code = code if isinstance(code, int) else None
    if not isinstance(kind, str) or kind not in _ENDINGS:
        kind = "crashed" if exception or code else "exited"
    return Ending(
        kind=kind,
        exit_code=code,
        exception=exception,
        site=call_site(found.get("file"), found.get("line"), found.get("function")),
    )


def call_site(file: object, line: object, function: object) -> CallSite | None:
    """Return a call site out of what a JSON text holds, None if it holds none."""
    if not isinstance(file, str) or not file or not isinstance(line, int):
        return None
    return CallSite(file=file, line=line, function=function if isinstance(function, str) else "")


def all_sites(ring: Ring) -> tuple[CallSite, ...]:
    """Return every call site in the ring's string table, the newest SITES_MAX of them."""
    found = dict.fromkeys(site for _, text in ring.strings() if (site := parse_site(text)))
    return tuple(found)[-config.SITES_MAX :]


def _text(value: object) -> str:
    return value[: config.TEXT_CHARS_MAX] if isinstance(value, str) else ""
