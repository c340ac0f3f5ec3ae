"""Reads a ring file while its rank writes it, and after.

A reader never maps the file, for one that is cut short would kill it; it reads each piece twice, until both copies
agree. What the bytes are is told in `layout`.
"""

import os
import struct
from collections.abc import Iterator

from ncclwatch.contract import config, foreign_json
from ncclwatch.contract.errors import RingError
from ncclwatch.contract.machine.private_dirs import PrivateDir, closed_on_error
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.layout import (
    BATCH_BITS,
    BUCKET_BYTES,
    BUCKET_COST,
    BUCKET_COUNT,
    BUCKET_STATIC,
    BUCKETS_AT,
    DTYPES,
    EVENT,
    EVENT_BYTES,
    EVENTS_AT,
    FIRST_STRING,
    GROUP,
    GROUP_BYTES,
    GROUPS_AT,
    HEADER,
    HEADER_BYTES,
    IN_ORDER,
    LOADER_BYTES,
    LOADER_COUNTS,
    LOADER_LAST,
    LOADER_STATIC,
    LOADERS_AT,
    MAGIC,
    MAKING,
    MAKING_AT,
    MAKING_MEMBERS_MAX,
    MEMBER_LIST,
    MEMBERS_AT,
    METER_BYTES,
    METER_HEAD,
    METER_SLOT,
    METER_SLOTS,
    METERS_AT,
    OPS,
    PEER_BYTES,
    PEER_COUNTS,
    PEER_STATIC,
    PEERS_AT,
    PID_MAX,
    REDUCE_OPS,
    RING_BYTES,
    SAMPLE_BYTES,
    SAMPLE_HEAD,
    SAMPLE_TEXT_MAX,
    SAMPLES_AT,
    SAVE_BYTES,
    SAVE_HEAD,
    SAVE_TEXT_MAX,
    SAVES_AT,
    STRING_LENGTH,
    STRINGS_AT,
    THREAD_BYTES,
    THREAD_STATIC,
    THREADS_AT,
    VERSION,
    WAIT,
    WAIT_AT,
    WAITS,
    WORDS,
    Word,
    event_stamp,
)
from ncclwatch.contract.ring.members import MEMBERS_MAX, Roster, known_in, unpack
from ncclwatch.contract.ring.rows import (
    BucketRow,
    EventRow,
    GroupRow,
    LoaderRow,
    MeterRow,
    PeerRow,
    RingHeader,
    SaveRow,
    ThreadRow,
    WaitRow,
)
from ncclwatch.contract.ring.shortening import short_name

COPIES_MAX = 100  # of one piece; a rank that stores it more often than it can be read is believed at last
KNOWN_CHARS_MAX = 2 * config.STRINGS_BYTES_MAX  # of texts that a reader remembers
BYTES_DIGITS_MAX = 19  # of a count of bytes as text
_WORDS_END = HEADER_BYTES + WORDS.size
_TORN_MAX = 3  # readings of a wait that is stored meanwhile
Words = tuple[int, ...]  # see `Word`


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
        with closed_on_error(fd):
            size = os.fstat(fd).st_size
            if size < RING_BYTES:
                raise RingError(f"{path}: {size} bytes, a ring has {RING_BYTES}; it is truncated or not a ring")
            self.header = self._read_header()
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

    def words(self) -> Words:
        """Return the live words, see `Word`. Who reads several tables at once reads them once, and hands them on."""
        return WORDS.unpack(self._map[HEADER_BYTES:_WORDS_END])

    def string(self, offset: int) -> str:
        """Return the text with this id, "" for 0 and for an id that was never published."""
        if offset <= 0 or offset + 2 > config.STRINGS_BYTES_MAX:
            return ""
        known = self._strings.get(offset)
        if known is None:
            used = self.words()[Word.STRINGS_USED]
            length = STRING_LENGTH.unpack(self._map[STRINGS_AT + offset : STRINGS_AT + offset + 2])[0]
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
            end = at + 2 + STRING_LENGTH.unpack_from(table, at)[0]
            if at + 2 < end <= used:
                yield at, self._strings.get(at) or table[at + 2 : end].decode(errors="replace")
            at = end

    def identity(self) -> dict[str, str]:
        """Return what the rank said of itself: job, host, server, argv..."""
        found = foreign_json.read(self.string(self.words()[Word.IDENTITY]))
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def groups(self, words: Words | None = None) -> list[GroupRow]:
        """Return this rank's process groups in order of first sight."""
        used = min((words or self.words())[Word.GROUPS_USED], config.GROUPS_MAX)
        table = self._map[GROUPS_AT : GROUPS_AT + used * GROUP_BYTES]
        return [self._group(index, table) for index in range(used)]

    def _group(self, index: int, table: bytes) -> GroupRow:
        name, desc, members, flags, prefix_hash, enqueued, completed, newest, timeout_ms, size, digest, site = (
            GROUP.unpack_from(table, index * GROUP_BYTES)
        )
        fixed = name, desc, members, size, digest
        known = self._fixed.get(index)
        if known is None or known[0] != fixed:
            # Whoever writes the file may let all rows share one text of 64 kB, which each view would repeat.
            names = short_name(self.string(name)), short_name(self.string(desc))
            known = fixed, (*names, self._roster(members, size, digest))
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
            known = known_in(known, self.header.world_size)  # a server takes no view of other ranks than its job has
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

    def threads(self, words: Words | None = None) -> list[ThreadRow]:
        """Return the threads that ever issued or waited, the torn ones without their wait."""
        used = min((words or self.words())[Word.THREADS_USED], config.THREADS_MAX)
        table = self._map[THREADS_AT : THREADS_AT + used * THREAD_BYTES]
        return [self._thread(index, table, index * THREAD_BYTES) for index in range(used)]

    def _thread(self, index: int, table: bytes, at: int) -> ThreadRow:
        tid, main, issued = THREAD_STATIC.unpack_from(table, at)
        return ThreadRow(index, tid, main == 1, issued, self._wait(index, table, at + WAIT_AT))

    def _wait(self, thread: int, table: bytes, at: int) -> WaitRow | None:
        """Return what a thread waits in, by a table that was read; one that is torn there is read again."""
        for _ in range(_TORN_MAX):
            stamp, since, site, again, seq, group, kind, op, peer = WAIT.unpack_from(table, at)
            if stamp == again:
                if not 1 <= kind <= len(WAITS) or op >= len(OPS):
                    return None
                waiting = WaitRow(since, site, seq, group, WAITS[kind - 1], OPS[op], peer)
                makes = waiting.kind is WaitKind.NEW_GROUP
                return waiting._replace(members=self._making(thread)) if makes else waiting
            begin = THREADS_AT + thread * THREAD_BYTES + WAIT_AT
            table, at = self._map[begin : begin + WAIT.size], 0
        return None

    def _making(self, thread: int) -> tuple[int, ...]:
        """Return who has to come to the group that a thread makes, () if all ranks do or it is not known."""
        at = THREADS_AT + thread * THREAD_BYTES + MAKING_AT
        members, size, digest = MAKING.unpack(self._map[at : at + MAKING.size])
        return self._roster(members, size, digest).members if 0 < size <= MAKING_MEMBERS_MAX else ()

    def peers(self) -> list[PeerRow]:
        """Return p2p counters, one row for each (group, peer)."""
        used = min(self.words()[Word.PEERS_USED], config.PEERS_MAX)
        rows = []
        for at in range(PEERS_AT, PEERS_AT + used * PEER_BYTES, PEER_BYTES):
            group, flags, peer, *waited = PEER_STATIC.unpack(self._map[at : at + 16])
            sends, sent, recvs, received = PEER_COUNTS.unpack(self._map[at + 16 : at + 32])
            rows.append(PeerRow(group, peer, sends, sent, recvs, received, flags, *waited))
        return rows

    def loaders(self) -> list[LoaderRow]:
        """Return the places that iterate over a DataLoader."""
        used = min(self.words()[Word.LOADERS_USED], config.LOADERS_MAX)
        return [self._loader(index) for index in range(used)]

    def newest_loader(self, words: Words | None = None) -> LoaderRow | None:
        """Return the place whose pass began last, or that gave the newest batch; None: there is none yet."""
        words = words or self.words()
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

    def saves(self, words: Words | None = None) -> list[SaveRow]:
        """Return the newest save of each thread that has ever saved, without the torn ones."""
        used = min((words or self.words())[Word.THREADS_USED], config.THREADS_MAX)
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
