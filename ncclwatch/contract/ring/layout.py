"""Lays out the bytes of a ring file, in which a rank leaves its marks, and reads them.

A ring is a plain file, mapped by one writing process and readable by anyone at any
moment, also after the writer got SIGKILL. Nothing in it needs a lock:

- Words are 8 bytes, aligned, written by one store each.
- Everything bigger is made of *cells* of 16 bytes. A vector store of 16 aligned bytes is
  not torn on x86-64 and arm64, whatever the order in which memcpy copies them. A structure of
  several cells repeats one stamp in each: the reader takes a copy, and believes it only if
  all stamps agree.
  The writer stores slices of its map: `struct` writes byte by byte, and would tear. A reader never maps the file, for
  one that is cut short would kill it; it reads each piece twice, until both copies agree.
- Strings are append-only; a string's id is its offset, and a published id is complete.

    header 512 B │ live words 512 B │ groups │ threads │ peers │ loaders │ samples │ strings │ events │ buckets │ saves
    │ meters │ members

Clocks are CLOCK_MONOTONIC of the node, in ns; readers on the same node turn them into ages.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ncclwatch.contract import config, foreign_json
from ncclwatch.contract.errors import RingError
from ncclwatch.contract.machine.private_dirs import PrivateDir
from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.members import MEMBERS_MAX, Roster, unpack

MAGIC = b"NCCLWRNG"
VERSION = 5

HEADER_BYTES = 512
WORDS_BYTES = 512
GROUP_BYTES = 72
THREAD_BYTES = 64
PEER_BYTES = 32
LOADER_BYTES = 48
SAMPLE_BYTES = 2048
EVENT_BYTES = 64
BUCKET_BYTES = 48
SAVE_BYTES = 1024
METER_BYTES = 256

GROUPS_AT = HEADER_BYTES + WORDS_BYTES
THREADS_AT = GROUPS_AT + config.GROUPS_MAX * GROUP_BYTES
PEERS_AT = THREADS_AT + config.THREADS_MAX * THREAD_BYTES
LOADERS_AT = PEERS_AT + config.PEERS_MAX * PEER_BYTES
SAMPLES_AT = LOADERS_AT + config.LOADERS_MAX * LOADER_BYTES
STRINGS_AT = SAMPLES_AT + (config.THREADS_MAX + 1) * SAMPLE_BYTES
EVENTS_AT = STRINGS_AT + config.STRINGS_BYTES_MAX
BUCKETS_AT = EVENTS_AT + config.EVENTS_MAX * EVENT_BYTES
SAVES_AT = BUCKETS_AT + config.BUCKETS_MAX * BUCKET_BYTES  # one for each thread row
METERS_AT = SAVES_AT + config.THREADS_MAX * SAVE_BYTES  # one for each of the first groups
MEMBERS_AT = METERS_AT + config.METERS_MAX * METER_BYTES
KNOWN_CHARS_MAX = 2 * config.STRINGS_BYTES_MAX  # of texts that a reader remembers
RING_BYTES = MEMBERS_AT + config.MEMBERS_BYTES_MAX

# magic, version, pid, start time of the process in clock ticks, rank, local rank, world size,
# local world size, attempt, ring bytes, created (ns)
HEADER = struct.Struct("<8sIIQiiiiiIQ")


class Word:
    """Indices of the live words."""

    PULSE_NS = 0  # last run of the rank's pulse thread
    STRINGS_USED = 1
    EVENTS_HEAD = 2  # events written so far; event i lies in slot i % EVENTS_MAX
    GROUPS_USED = 3
    THREADS_USED = 4
    PEERS_USED = 5
    LOADERS_USED = 6
    STEPS = 7
    FORWARDS = 8
    PHASE = 9  # string id
    PHASE_NS = 10
    DROPPED = 11
    ENDED = 12  # string id of a JSON text, see Ending; 0: not ended
    ENDED_NS = 13
    INITIALISED = 14  # 1 once init_process_group has returned
    IDENTITY = 15  # string id of a JSON text with job, host, argv...
    DETACHED = 16  # 1: the rank took its patches off and wants no judgement
    TIMEOUT_MS = 17  # of the default group
    ENDPOINT = 18  # string id: master address and port used at init
    AGENT_PID = 19  # the agent this rank allows to trace it
    DEVICE = 20  # string id
    BATCH = 21  # the batch word that the next operations get
    BACKWARD_SITE = 22  # string id: where backward() was called last
    LOADER = 23  # row, plus one, of the loader that gave the newest batch or began the newest pass; 0: none
    BUCKETS_USED = 24
    FACTS = 25  # string id of a JSON text with what the rank found out about itself, see `facts`
    # Running totals in ns, of this rank's own clock.
    WAITED_NS = 26  # blocked in collectives that all members must reach
    PEERS_WAITED_NS = 27  # blocked in sends and receives
    DATA_NS = 28  # in the next() of loaders
    GC_NS = 29  # in Python's garbage collector
    SAVE_NS = 30  # in saves
    MEMBERS_USED = 31


COPIES_MAX = 100  # of one piece; a rank that stores it more often than it can be read is believed at last
_LENGTH = struct.Struct("<H")  # of a string
_WORDS = struct.Struct("<32Q")  # those in use
_WORDS_END = HEADER_BYTES + _WORDS.size


class Flag:
    """Bits of a group row."""

    DESTROYED = 1
    ASYNC = 2  # returning from wait() says nothing: a device waits, and the host runs ahead
    BLIND = 4  # nobody tells what of it is complete
    LATE = 8  # it had issued operations before anybody recorded them: its hash begins in the middle


class LoaderFlag:
    """Bits of a loader row."""

    EVEN = 1  # ranks with unequal numbers of batches do not wait for each other: even_batches or Join sees to it


# Group row.
GROUP = struct.Struct("<IIIIQQQQIIQI4x")  # all of it, and by parts:
GROUP_STATIC = struct.Struct("<IIII")  # name id, description id, member list id (0: it found no room), flags
GROUP_HEAD = struct.Struct("<QQ")  # prefix hash, enqueued
GROUP_DONE = struct.Struct("<QQ")  # completed, index + 1 of this group's newest event
GROUP_FRONTIER = struct.Struct("<QQQQ")  # head and done
GROUP_LIMIT = struct.Struct("<I")  # timeout of its operations in ms, 0: unknown
GROUP_LIMIT_AT = 48
GROUP_SIZE = struct.Struct("<IQ")  # number and digest of its members, whether or not their list found room
GROUP_SIZE_AT = 52
GROUP_SITE = struct.Struct("<I4x")  # id of the call site that made it, 0: unknown
MEMBER_LIST = struct.Struct("<I")  # bytes of `members.pack` that follow; its id is its offset, as of a string
# Thread row: a static cell, a spare cell, a wait of two stamped cells.
THREAD_STATIC = struct.Struct("<IIQ")  # native thread id, 1 for the main thread, issued
WAIT = struct.Struct("<IQIIIHBBi")  # stamp, since, site | stamp, seq, group, kind, op, peer
WAIT_AT = 32
PEER_STATIC = struct.Struct("<IiQ")  # group index, peer (-1: a receive from anyone), unused
PEER_COUNTS = struct.Struct("<IIII")  # sends, sends completed, recvs, recvs completed
LOADER_STATIC = struct.Struct("<IIQ")  # site id, passes begun, length
LOADER_COUNTS = struct.Struct("<QQ")  # drawn in the latest pass, number of the latest pass that ended itself
LOADER_LAST = struct.Struct("<QQ")  # batches of that pass, flags of the latest one
BUCKET_STATIC = struct.Struct("<IIQ")  # loader row, string id of its name, unused
BUCKET_COUNT = struct.Struct("<QQ")  # pass, batches of this bucket in it
BUCKET_COST = struct.Struct("<QQ")  # batches of it that were timed, in all passes; ns that the rank worked on them
SAMPLE_HEAD = struct.Struct("<QQI")  # stamp, unchanged since, bytes of JSON that follow
SAMPLE_TEXT_MAX = SAMPLE_BYTES - SAMPLE_HEAD.size - 8
# Save: the newest one of a thread. Paths change with every checkpoint, so they are no strings of the table.
SAVE_HEAD = struct.Struct("<QQQII")  # stamp, begun, ended (0: under way), site id, bytes of JSON that follow
SAVE_TEXT_MAX = SAVE_BYTES - SAVE_HEAD.size - 8
BYTES_DIGITS_MAX = 19  # of a count of bytes as text
# Meter: how long a rank had been blocked in collectives of all groups as of some collectives of this one. Slot k holds
# that of the newest boundary that is a multiple of 2^k and of no higher power that was crossed with it. Whoever wants
# totals at all multiples of 2^k finds the newest in the slots from k on; so one store for each step serves readers of
# any rhythm, and ranks that are read at different moments are compared over the same operations.
METER_HEAD = struct.Struct("<QQ")  # sequence number of the newest collective that somebody was blocked in, unused
METER_SLOT = struct.Struct("<IIQ")  # boundary, time in ms (never 0), total in ns of what came before it
METER_SLOTS = METER_BYTES // METER_SLOT.size - 1
# Event: four stamped cells.
# stamp, time, group, op, thread | stamp, numel, site
# | stamp, prefix hash, seq | stamp, batch, forwards, signature
EVENT = struct.Struct("<IQHBBIQIIQIIIII")

OPS: tuple[Op, ...] = tuple(Op)
WAITS: tuple[WaitKind, ...] = tuple(WaitKind)  # stored plus one; 0: no wait
DTYPES = (
    "", "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "other",
)  # fmt: skip
REDUCE_OPS = ("", "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum", "other")
NO_GROUP = 0xFFFF
PID_MAX = 2**31 - 1
NO_THREAD = 0xFF  # of an event: its thread has no row
IN_ORDER = 1 << 30  # of an event's signature word: issued with async_op=False, so what follows comes after it
BATCH_BITS = 26  # of an event's batch word; above them the loader's index plus one


def signature_word(peer: int, dtype: int, reduce_op: int) -> int:
    """Pack peer (-1: none), dtype and reduce op codes into the event's signature word."""
    return (peer + 1) & 0xFFFFF | (dtype & 0x3F) << 20 | (reduce_op & 0xF) << 26


class RingHeader(NamedTuple):
    """Who writes this ring. Start time is in clock ticks since boot, so that a reused pid is not mistaken."""

    pid: int
    start_ticks: int
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    attempt: int
    created_ns: int


class GroupRow(NamedTuple):
    """One process group of this rank. 0 <= completed <= enqueued, but for the moment of an update."""

    number: int
    name: str
    desc: str
    roster: Roster
    flags: int
    prefix_hash: int
    enqueued: int
    completed: int
    newest_event: int  # -1: none
    timeout_ms: int = 0  # of its operations; 0: unknown
    site: int = 0  # id of the call site that made it; 0: unknown

    @property
    def ranks(self) -> tuple[int, ...]:
        """All members, () if they are not known."""
        return self.roster.members


class WaitRow(NamedTuple):
    """What a thread has entered and not left."""

    since_ns: int
    site: int
    seq: int
    group: int
    kind: WaitKind
    op: Op
    peer: int


class ThreadRow(NamedTuple):
    """One thread of the rank."""

    number: int
    tid: int
    main: bool
    issued: int
    wait: WaitRow | None


class PeerRow(NamedTuple):
    """p2p operations with one peer (global rank) of one group."""

    group: int
    peer: int
    sends: int
    sends_completed: int
    recvs: int
    recvs_completed: int


class LoaderRow(NamedTuple):
    """One place that iterates over a DataLoader."""

    site: int
    passes: int
    length: int
    drawn: int
    ended_pass: int
    last_drawn: int
    flags: int = 0  # of the latest pass, see `LoaderFlag`
    number: int = 0  # of the row


class BucketRow(NamedTuple):
    """Batches of one data bucket (all of one shape, say) that one loader gave in one pass."""

    loader: int
    name: str
    passes: int
    drawn: int
    timed: int = 0  # batches, in all passes
    worked_ns: int = 0  # on these: neither blocked in collectives nor waiting for data


class SaveRow(NamedTuple):
    """The newest save of one thread."""

    thread: int
    began_ns: int
    ended_ns: int  # 0: under way
    site: int
    call: str  # "torch.save"
    path: str  # absolute; "": it goes to an object that has no path
    error: str  # what it raised, "" if nothing
    least_bytes: int = 0  # that its tensors have; 0: unknown


class MeterRow(NamedTuple):
    """How long a rank had been blocked in collectives as of one of a group; all members cut at the same ones."""

    boundary: int  # sequence number; the total is of what came before it
    time_ms: int  # when it was crossed, modulo 2^32
    waited_ns: int  # in all groups


class EventRow(NamedTuple):
    """One operation as issued."""

    number: int
    time_ns: int
    group: int
    op: Op
    thread: int
    numel: int
    site: int
    prefix_hash: int
    seq: int
    batch: int
    loader: int
    forwards: int
    peer: int
    dtype: str
    reduce_op: str
    in_order: bool  # what its thread issues later, in any group, comes after it


def named_apart(groups: Iterable[GroupRow]) -> tuple[GroupRow, ...]:
    """Give groups that were destroyed and made again names of their own: "0", "0~2".

    torch names the new default group as the old one, and what one rank does in the new one has nothing to do with
    what another still does in the old.
    """
    seen: dict[str, int] = {}
    named = []
    for row in groups:
        seen[row.name] = times = seen.get(row.name, 0) + 1
        named.append(row if times == 1 else row._replace(name=f"{row.name}~{times}"))
    return tuple(named)


class _Pieces:
    """The bytes of a file that another process changes meanwhile. What lies behind its end is zero."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __getitem__(self, piece: slice) -> bytes:
        """Return a piece as it was at one moment.

        The kernel copies word by word, so a copy may hold one half of a cell before a store and the other half after
        it. A second copy that is the same cannot: in each cell something only ever grows.
        """
        start: int = piece.start
        size: int = piece.stop - start
        before = os.pread(self.fd, size, start)
        for _ in range(COPIES_MAX):
            found = os.pread(self.fd, size, start)
            if found == before:
                break
            before = found
        return before if len(before) == size else before.ljust(size, b"\0")


class Ring:
    """A ring file, opened for reading. Use as a context manager.

    Raises `RingError` on opening a file that is no ring, and never afterwards: what is torn or
    out of range is left out. With a `place` it is opened there, as a file of this user's own (see `private_dirs`), and
    the place is closed with it.
    """

    def __init__(self, path: str, place: PrivateDir | None = None) -> None:
        self.path = path
        self.file_name = path.rpartition("/")[2]
        self.place = place
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if place is None else place.open(self.file_name, os.O_RDONLY)
        self._map = _Pieces(fd)
        try:
            size = os.fstat(fd).st_size
            if size < RING_BYTES:
                raise RingError(f"{path}: {size} bytes, a ring has {RING_BYTES}; it is truncated or not a ring")
            self.header = self._read_header()
        except (RingError, OSError):
            os.close(fd)
            raise
        self._strings: dict[int, str] = {}
        self._strings_chars = 0
        self._rosters: dict[tuple[int, int, int], Roster] = {}
        # of a row of a group: what never changes in it, as it stands there and as it is read
        self._fixed: dict[int, tuple[tuple[int, int, int, int, int], tuple[str, str, Roster]]] = {}
        self._members_left = MEMBERS_MAX  # that this file may have us read

    def _read_header(self) -> RingHeader:
        fields = HEADER.unpack(self._map[0 : HEADER.size])
        magic, version, size = fields[0], fields[1], fields[9]
        if magic != MAGIC:
            raise RingError(f"{self.path}: not a ring of ncclwatch (it begins with {magic!r})")
        if version != VERSION or size != RING_BYTES:
            raise RingError(
                f"{self.path}: a ring of layout {version}, this agent reads layout {VERSION}; "
                "install the same version of ncclwatch in training and on the node"
            )
        found = RingHeader._make((*fields[2:9], fields[10]))
        if not 0 < found.pid <= PID_MAX:
            raise RingError(f"{self.path}: it says that process {found.pid} writes it, and there can be none")
        return found

    def __enter__(self) -> "Ring":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and its place."""
        os.close(self._map.fd)
        if self.place is not None:
            self.place.close()

    @property
    def inode(self) -> int:
        """Return which file this is, whatever has its name by now."""
        return os.fstat(self._map.fd).st_ino

    def is_whole(self) -> bool:
        """Whether the file still has its size. If not, what was read of it lately may be zeros."""
        return os.fstat(self._map.fd).st_size >= RING_BYTES

    def words(self) -> tuple[int, ...]:
        """Return the live words, see `Word`."""
        return _WORDS.unpack(self._map[HEADER_BYTES:_WORDS_END])

    def string(self, offset: int) -> str:
        """Return the text with this id, "" for 0 and for an id that was never published."""
        if offset <= 0 or offset + 2 > config.STRINGS_BYTES_MAX:
            return ""
        known = self._strings.get(offset)
        if known is None:
            used = self.words()[Word.STRINGS_USED]
            length = _LENGTH.unpack(self._map[STRINGS_AT + offset : STRINGS_AT + offset + 2])[0]
            end = offset + 2 + length
            if end > min(used, config.STRINGS_BYTES_MAX):
                return ""
            known = self._map[STRINGS_AT + offset + 2 : STRINGS_AT + end].decode(errors="replace")
            if self._strings_chars > KNOWN_CHARS_MAX:  # never of a ring whose ids are ids: texts do not overlap
                self._strings.clear()
                self._strings_chars = 0
            self._strings[offset] = known
            self._strings_chars += len(known)
        return known

    def strings(self) -> Iterator[tuple[int, str]]:
        """Yield every published (id, text) that is not empty, oldest first.

        The table is read at once: it may say that it holds a hundred thousand texts of nothing.
        """
        used = min(self.words()[Word.STRINGS_USED], config.STRINGS_BYTES_MAX)
        table = self._map[STRINGS_AT : STRINGS_AT + used]
        at = FIRST_STRING
        while at + 2 <= used:
            end = at + 2 + _LENGTH.unpack_from(table, at)[0]
            if at + 2 < end <= used:
                yield at, self._strings.get(at) or table[at + 2 : end].decode(errors="replace")
            at = end

    def identity(self) -> dict[str, str]:
        """Return what the rank said of itself: job, host, server, argv..."""
        found = foreign_json.read(self.string(self.words()[Word.IDENTITY]))
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def groups(self) -> list[GroupRow]:
        """Return this rank's process groups in order of first sight."""
        used = min(self.words()[Word.GROUPS_USED], config.GROUPS_MAX)
        table = self._map[GROUPS_AT : GROUPS_AT + used * GROUP_BYTES]
        return [self._group(index, table) for index in range(used)]

    def _group(self, index: int, table: bytes) -> GroupRow:
        name, desc, members, flags, prefix_hash, enqueued, completed, newest, timeout_ms, size, digest, site = (
            GROUP.unpack_from(table, index * GROUP_BYTES)
        )
        fixed = name, desc, members, size, digest
        known = self._fixed.get(index)
        if known is None or known[0] != fixed:
            known = fixed, (self.string(name), self.string(desc), self._roster(members, size, digest))
            self._fixed[index] = known
        return GroupRow(
            index, *known[1], flags, prefix_hash, enqueued, min(completed, enqueued), newest - 1, timeout_ms, site
        )  # fmt: skip

    def _roster(self, offset: int, size: int, digest: int) -> Roster:
        """Return the members of a group, only their number where their list is not here or not to be trusted."""
        known = self._rosters.get((offset, size, digest))
        if known is None:
            data = self._member_list(offset) if 0 < size <= self._members_left else b""
            self._members_left -= size if data else 0
            known = unpack(data, size, digest) if data else Roster(size, digest)
            if len(self._rosters) >= 2 * config.GROUPS_MAX:  # rows that change what never changes
                self._rosters.clear()
            self._rosters[offset, size, digest] = known
        return known

    def _member_list(self, offset: int) -> bytes:
        used = min(self.words()[Word.MEMBERS_USED], config.MEMBERS_BYTES_MAX)
        begin = offset + MEMBER_LIST.size
        if not FIRST_STRING <= offset <= used - MEMBER_LIST.size:
            return b""
        end = begin + MEMBER_LIST.unpack(self._map[MEMBERS_AT + offset : MEMBERS_AT + begin])[0]
        return self._map[MEMBERS_AT + begin : MEMBERS_AT + end] if end <= used else b""

    def threads(self) -> list[ThreadRow]:
        """Return the threads that ever issued or waited, the torn ones without their wait."""
        used = min(self.words()[Word.THREADS_USED], config.THREADS_MAX)
        rows = []
        for index in range(used):
            at = THREADS_AT + index * THREAD_BYTES
            tid, main, issued = THREAD_STATIC.unpack(self._map[at : at + 16])
            rows.append(ThreadRow(index, tid, main == 1, issued, self._wait(at + WAIT_AT)))
        return rows

    def _wait(self, at: int) -> WaitRow | None:
        for _ in range(3):
            stamp, since, site, again, seq, group, kind, op, peer = WAIT.unpack(self._map[at : at + WAIT.size])
            if stamp == again:
                if not 1 <= kind <= len(WAITS) or op >= len(OPS):
                    return None
                return WaitRow(since, site, seq, group, WAITS[kind - 1], OPS[op], peer)
        return None

    def peers(self) -> list[PeerRow]:
        """Return p2p counters, one row for each (group, peer)."""
        used = min(self.words()[Word.PEERS_USED], config.PEERS_MAX)
        rows = []
        for at in range(PEERS_AT, PEERS_AT + used * PEER_BYTES, PEER_BYTES):
            group, peer, _ = PEER_STATIC.unpack(self._map[at : at + 16])
            rows.append(PeerRow(group, peer, *PEER_COUNTS.unpack(self._map[at + 16 : at + 32])))
        return rows

    def loaders(self) -> list[LoaderRow]:
        """Return the places that iterate over a DataLoader."""
        used = min(self.words()[Word.LOADERS_USED], config.LOADERS_MAX)
        return [self._loader(index) for index in range(used)]

    def newest_loader(self) -> LoaderRow | None:
        """Return the place whose pass began last, or that gave the newest batch; None: there is none yet."""
        words = self.words()
        number = words[Word.LOADER]
        return self._loader(number - 1) if 0 < number <= min(words[Word.LOADERS_USED], config.LOADERS_MAX) else None

    def _loader(self, index: int) -> LoaderRow:
        at = LOADERS_AT + index * LOADER_BYTES
        row = self._map[at : at + LOADER_BYTES]
        site, passes, length = LOADER_STATIC.unpack_from(row, 0)
        drawn, ended = LOADER_COUNTS.unpack_from(row, 16)
        last, flags = LOADER_LAST.unpack_from(row, 32)
        return LoaderRow(site, passes, length, drawn, ended, last, flags, index)

    def buckets(self) -> list[BucketRow]:
        """Return the data buckets of all loaders."""
        used = min(self.words()[Word.BUCKETS_USED], config.BUCKETS_MAX)
        rows = []
        for at in range(BUCKETS_AT, BUCKETS_AT + used * BUCKET_BYTES, BUCKET_BYTES):
            loader, name, _ = BUCKET_STATIC.unpack(self._map[at : at + 16])
            counts = BUCKET_COUNT.unpack(self._map[at + 16 : at + 32])
            costs = BUCKET_COST.unpack(self._map[at + 32 : at + 48])
            rows.append(BucketRow(loader, self.string(name), *counts, *costs))
        return rows

    def sample(self, index: int) -> tuple[int, dict[str, object]] | None:
        """Return (unchanged since in ns, what the pulse saw) of thread `index`; None if torn or never taken.

        Index THREADS_MAX holds what concerns the whole rank.
        """
        at = SAMPLES_AT + index * SAMPLE_BYTES
        row = self._map[at : at + SAMPLE_BYTES]
        stamp, since, length = SAMPLE_HEAD.unpack_from(row, 0)
        tail = struct.unpack_from("<Q", row, SAMPLE_BYTES - 8)[0]
        if stamp == 0 or stamp != tail or length > SAMPLE_TEXT_MAX:
            return None
        found = foreign_json.read(row[SAMPLE_HEAD.size : SAMPLE_HEAD.size + length])
        return (since, found) if isinstance(found, dict) else None

    def saves(self) -> list[SaveRow]:
        """Return the newest save of each thread that has ever saved, without the torn ones."""
        used = min(self.words()[Word.THREADS_USED], config.THREADS_MAX)
        found = (self._save(thread) for thread in range(used))
        return [row for row in found if row is not None]

    def _save(self, thread: int) -> SaveRow | None:
        at = SAVES_AT + thread * SAVE_BYTES
        head = self._map[at : at + SAVE_HEAD.size]
        stamp, began_ns, ended_ns, site, length = SAVE_HEAD.unpack(head)
        if stamp == 0 or length > SAVE_TEXT_MAX:
            return None
        row = self._map[at : at + SAVE_BYTES]
        tail = struct.unpack_from("<Q", row, SAVE_BYTES - 8)[0]
        if head != row[: SAVE_HEAD.size] or stamp != tail:
            return None
        found = foreign_json.read(row[SAVE_HEAD.size : SAVE_HEAD.size + length])
        if not isinstance(found, dict):
            return None
        call, path, error, count = (str(found.get(name, "")) for name in ("call", "path", "error", "bytes"))
        least_bytes = int(count) if count.isascii() and count.isdigit() and len(count) < BYTES_DIGITS_MAX else 0
        return SaveRow(thread, began_ns, ended_ns, site, call, path, error, least_bytes)

    def meter(self, group: int, level: int) -> MeterRow | None:
        """Return a group's newest total at a boundary that is a multiple of 2^level; None: there is none yet."""
        level = min(level, METER_SLOTS - 1)
        if group >= config.METERS_MAX:
            return None
        at = METERS_AT + group * METER_BYTES + METER_HEAD.size
        found = self._map[at + level * METER_SLOT.size : at + METER_SLOTS * METER_SLOT.size]
        newest = max(METER_SLOT.iter_unpack(found))
        return MeterRow._make(newest) if newest[1] else None

    def events(self, count: int) -> list[EventRow]:
        """Return the newest `count` operations at most, oldest first, without the torn ones."""
        head = self.words()[Word.EVENTS_HEAD]
        first = max(0, head - min(count, config.EVENTS_MAX))
        found = (self.event(index) for index in range(first, head))
        return [event for event in found if event is not None]

    def event(self, index: int) -> EventRow | None:
        """Return operation number `index` of this rank, or None if it is torn or overwritten."""
        at = EVENTS_AT + index % config.EVENTS_MAX * EVENT_BYTES
        (a, time_ns, group, op, thread, b, numel, site, c, prefix, seq, d, batch, forwards, word) = EVENT.unpack(
            self._map[at : at + EVENT_BYTES]
        )
        stamp = event_stamp(index)
        if not a == b == c == d == stamp or op >= len(OPS):
            return None
        dtype, reduce_op = word >> 20 & 0x3F, word >> 26 & 0xF
        return EventRow(
            index, time_ns, group, OPS[op], thread, numel, site, prefix, seq,
            batch & (1 << BATCH_BITS) - 1, batch >> BATCH_BITS, forwards, (word & 0xFFFFF) - 1,
            DTYPES[min(dtype, len(DTYPES) - 1)], REDUCE_OPS[min(reduce_op, len(REDUCE_OPS) - 1)],
            bool(word & IN_ORDER),
        )  # fmt: skip


FIRST_STRING = 4  # id 0 means "no text", or "no list of members"


def event_stamp(index: int) -> int:
    """Return the stamp of event number `index`: never 0, and another one for each pass over the ring."""
    return (index + 1) & 0xFFFFFFFF or 1
