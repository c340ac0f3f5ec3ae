"""What does a ring tell that a rank left behind? Nobody writes to it any more: the clock stands at its last pulse.

The agent of a live job joins a ring with what the kernel says of the process. Here there is no process, so
its state is unknown and what threads did is what the pulse last saw.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ncclwatch.contract import config, facts
from ncclwatch.contract.errors import RingError
from ncclwatch.contract.model import (
    CallSite,
    Ending,
    GroupView,
    LoaderView,
    Op,
    OpView,
    PeerView,
    ProcessState,
    ProcessView,
    RankView,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch.contract.ring import (
    MAGIC,
    NO_GROUP,
    EventRow,
    Flag,
    Ring,
    ThreadRow,
    WaitRow,
    Word,
    named_apart,
)
from ncclwatch.contract.sites import parse, read_routes
from ncclwatch_server.postmortem.errors import Unreadable

__all__ = ["MAGIC", "Left", "read"]

_ENDINGS = ("exited", "crashed", "signalled", "vanished")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A ring as it was left."""

    view: RankView
    pulse_ns: int  # of the node's clock
    path: str


class _Picture:
    """The tables of one ring, and the moment at which it was left."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.words = ring.words()
        self.groups = named_apart(ring.groups())
        self.peers = ring.peers()
        self.threads = ring.threads()
        self.routes = read_routes(ring.strings(), config.SITES_MAX)
        self.now_ns = max(self.words[Word.PULSE_NS], ring.header.created_ns)

    def age_s(self, then_ns: int) -> float:
        return max(0.0, (self.now_ns - then_ns) / 1e9) if then_ns else 0.0

    def group_name(self, number: int) -> str:
        return self.groups[number].name if number != NO_GROUP and number < len(self.groups) else ""

    def site(self, text: int) -> tuple[CallSite | None, str]:
        """Return (call site, what the operation is for)."""
        found = parse(self.ring.string(text))
        if found is None:
            return None, ""
        place = CallSite(file=found.file, line=found.line, function=found.function) if found.file else None
        return place, found.label

    def is_completed(self, event: EventRow) -> bool:
        if not event.op.is_p2p:
            return event.group < len(self.groups) and event.seq <= self.groups[event.group].completed
        for row in self.peers:
            if (row.group, row.peer) == (event.group, event.peer):
                return event.seq <= (row.sends_completed if event.op is Op.SEND else row.recvs_completed)
        return False


def read(path: str) -> Left:
    """Return what a ring tells. Raises `Unreadable`."""
    try:
        with Ring(path) as ring:
            return _left(_Picture(ring), path)
    except (RingError, ValueError) as error:
        raise Unreadable(str(error).removeprefix(f"{path}: ")) from error


def _left(picture: _Picture, path: str) -> Left:
    header, words, ring = picture.ring.header, picture.words, picture.ring
    told = facts.parse(ring.string(words[Word.FACTS]))
    history = tuple(_op(picture, event) for event in ring.events(config.HISTORY_MAX))
    ended = _ending(picture) if words[Word.ENDED] else None
    exception, exception_s, exception_site = _handled(picture)
    view = RankView(
        rank=header.rank,
        local_rank=header.local_rank,
        host=ring.identity().get("host", ""),
        pid=header.pid,
        device=ring.string(words[Word.DEVICE]),
        world_size=header.world_size,
        local_world_size=header.local_world_size,
        attempt=header.attempt,
        process=ProcessView(state=ProcessState.UNKNOWN),
        pulse_age_s=0.0,
        initialised=words[Word.INITIALISED] == 1,
        ending=ended,
        threads=tuple(_thread(picture, row) for row in picture.threads),
        groups=tuple(_groups(picture, history)),
        peers=tuple(
            PeerView(
                group=picture.group_name(row.group),
                peer=row.peer,
                sends=row.sends,
                sends_completed=min(row.sends, row.sends_completed),
                recvs=row.recvs,
                recvs_completed=min(row.recvs, row.recvs_completed),
            )
            for row in picture.peers
        ),
        loaders=tuple(
            LoaderView(
                site=picture.site(row.site)[0] or CallSite(file="", line=0, function=""),
                passes=row.passes,
                drawn=row.drawn,
                exhausted=row.passes > 0 and row.ended_pass == row.passes,
                last_drawn=row.last_drawn,
                length=row.length,
            )
            for row in ring.loaders()
        ),
        cuda=told.device,
        rng=told.rng,
        history=history,
        routes=picture.routes.frames,
        sites=tuple(dict.fromkeys(site for text, _ in ring.strings() if (site := picture.site(text)[0])))[
            -config.SITES_MAX :
        ],
        steps=words[Word.STEPS],
        forwards=words[Word.FORWARDS],
        phase=ring.string(words[Word.PHASE]),
        phase_s=picture.age_s(words[Word.PHASE_NS]) if words[Word.PHASE] else 0.0,
        last_exception=exception,
        last_exception_s=exception_s,
        last_exception_site=exception_site,
        endpoint=ring.string(words[Word.ENDPOINT]),
        timeout_s=words[Word.TIMEOUT_MS] / 1000,
        dropped=words[Word.DROPPED],
    )
    return Left(view=view, pulse_ns=picture.now_ns, path=path)


def _op(picture: _Picture, event: EventRow) -> OpView:
    site, label = picture.site(event.site)
    return OpView(
        group=picture.group_name(event.group),
        seq=event.seq,
        op=event.op,
        dtype=event.dtype,
        numel=event.numel,
        peer=event.peer,
        reduce_op=event.reduce_op,
        site=site,
        route=picture.routes.of(event.site),
        label=label,
        thread=next((row.tid for row in picture.threads if row.number == event.thread), 0),
        batch=event.batch,
        loader=event.loader,
        forwards=event.forwards,
        completed=picture.is_completed(event),
        in_order=event.in_order,
        age_s=picture.age_s(event.time_ns),
    )


def _groups(picture: _Picture, history: Iterable[OpView]) -> Iterable[GroupView]:
    oldest: dict[tuple[str, int], OpView] = {}
    for op in history:
        if not op.op.is_p2p and not op.completed:
            oldest.setdefault((op.group, op.seq), op)
    for row in picture.groups:
        known = not row.flags & Flag.BLIND
        yield GroupView(
            name=row.name,
            desc=row.desc,
            ranks=row.ranks,
            enqueued=row.enqueued,
            completed=row.completed,
            prefix_hash=row.prefix_hash,
            pending=oldest.get((row.name, row.completed + 1)) if known and row.completed < row.enqueued else None,
            destroyed=bool(row.flags & Flag.DESTROYED),
            late=bool(row.flags & Flag.LATE),
            blind=not known,
            asynchronous=bool(row.flags & Flag.ASYNC),
            timeout_s=row.timeout_ms / 1000,
        )


def _thread(picture: _Picture, row: ThreadRow) -> ThreadView:
    sample = picture.ring.sample(row.number)
    since_ns, found = sample if sample is not None else (picture.now_ns, {})
    frames = _frames(found.get("frames"))
    same_s = picture.age_s(since_ns)
    wait = _wait(picture, row.wait) if row.wait is not None else None
    return ThreadView(
        tid=row.tid,
        main=row.main,
        issued=row.issued,
        wait=wait,
        doing=frames[0] if frames else None,
        frames=frames,
        leaf=_text(found.get("leaf")),
        same_s=same_s,
        # A thread that stood in the autograd engine for so long waited there for its buckets.
        cpu_still_s=same_s if wait is not None and wait.kind is WaitKind.BACKWARD else 0.0,
        exception=_text(found.get("exc")),
        exception_site=_site_of(found.get("exc_file"), found.get("exc_line"), found.get("exc_function")),
    )


def _wait(picture: _Picture, wait: WaitRow) -> WaitView:
    site, label = picture.site(wait.site)
    return WaitView(
        kind=wait.kind,
        age_s=picture.age_s(wait.since_ns),
        group=picture.group_name(wait.group),
        seq=wait.seq,
        op=Op.UNKNOWN if wait.group == NO_GROUP else wait.op,
        peer=wait.peer,
        site=site,
        route=picture.routes.of(wait.site),
        label=label,
    )


def _handled(picture: _Picture) -> tuple[str, float, CallSite | None]:
    sample = picture.ring.sample(config.THREADS_MAX)
    if sample is None or not sample[1].get("exc"):
        return "", 0.0, None
    since_ns, found = sample
    site = _site_of(found.get("exc_file"), found.get("exc_line"), found.get("exc_function"))
    return _text(found.get("exc")), picture.age_s(since_ns), site


def _ending(picture: _Picture) -> Ending | None:
    """Return what the rank's exit hooks wrote of its end."""
    try:
        found = json.loads(picture.ring.string(picture.words[Word.ENDED]))
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    exception, code, kind = _text(found.get("exception")), found.get("exit_code"), found.get("kind")
    code = code if isinstance(code, int) else None
    return Ending(
        kind=kind if kind in _ENDINGS else "crashed" if exception or code else "exited",
        exit_code=code,
        exception=exception,
        site=_site_of(found.get("file"), found.get("line"), found.get("function")),
        age_s=picture.age_s(picture.words[Word.ENDED_NS]),
    )


def _frames(value: object) -> tuple[CallSite, ...]:
    entries = value if isinstance(value, list) else []
    found = [_site_of(*entry) for entry in entries if isinstance(entry, list) and len(entry) == 3]
    return tuple(site for site in found if site is not None)[: config.STACK_DEPTH_MAX]


def _site_of(file: object, line: object, function: object) -> CallSite | None:
    if not isinstance(file, str) or not file or not isinstance(line, int):
        return None
    return CallSite(file=file, line=line, function=function if isinstance(function, str) else "")


def _text(value: object) -> str:
    return value[: config.TEXT_CHARS_MAX] if isinstance(value, str) else ""


def newest_pulse_ns(found: Iterable[Left]) -> Mapping[str, int]:
    """Return when the last ring of each host was left: their clocks agree with each other, not with other hosts'."""
    newest: dict[str, int] = {}
    for left in found:
        newest[left.view.host] = max(newest.get(left.view.host, 0), left.pulse_ns)
    return newest
