"""Puts a rank's marks into its ring without a lock and without ever waiting.

Every write is one store of at most 64 bytes made of 16-byte cells; `ncclwatch.contract.ring.layout`
says why a reader can trust them. Only growing things (strings, rows) take a lock of our own,
for a few hundred nanoseconds, and never while calling anything else.
"""

import itertools
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ncclwatch.contract import config, job_names
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.machine.private_dirs import PrivateDir, open_private, require_memory
from ncclwatch.contract.ring import layout
from ncclwatch.contract.ring.layout import PeerWord, Word
from ncclwatch.contract.ring.members import GROUP_MEMBERS_MAX, digest_of, pack
from ncclwatch.contract.ring.shortening import short_json, short_name
from ncclwatch.rank.ring.mapping import create

# Looked up once: these are on the path of every operation.
_EVENTS_AT, _EVENTS_MAX, _EVENTS_HEAD = layout.EVENTS_AT, config.EVENTS_MAX, Word.EVENTS_HEAD
_pack_event = layout.EVENT.pack
_LOADERS_DRAWN, _LOADER_WORDS = (layout.LOADERS_AT + 16) // 8, layout.LOADER_BYTES // 8
_BUCKETS_DRAWN, _BUCKET_WORDS = (layout.BUCKETS_AT + 24) // 8, layout.BUCKET_BYTES // 8
NO_WAIT = bytes(layout.WAIT.size)
_METER_BYTES, _METERS_MAX, _LAST_SLOT = layout.METER_BYTES, config.METERS_MAX, layout.METER_SLOTS - 1
_METER_HEADS, _METER_WORDS = layout.METERS_AT // 8, layout.METER_BYTES // 8
_SLOTS_AT, _SLOT_BYTES = layout.METERS_AT + layout.METER_HEAD.size, layout.METER_SLOT.size
_pack_slot = layout.METER_SLOT.pack
_WAITED_NS = Word.WAITED_NS


class NoProcError(NcclwatchError):
    """This process cannot say who it is. The message says what to do."""


def process_start_ticks() -> int:
    """Return this process's start time in clock ticks since boot; it tells a reused pid apart.

    Raises `NoProcError` where there is no /proc.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[19])
    except (OSError, ValueError, IndexError) as error:
        raise NoProcError(
            f"cannot read /proc/self/stat ({error}), and without it nobody can tell whose ring this is. "
            "Mount /proc where training runs: mount -t proc proc /proc"
        ) from error


def place_of_rings(directory: str, job: str) -> PrivateDir:
    """Open the place of a job's rings, or make it.

    Raises `NotPrivateError` where somebody else could reach it or it is not in memory, `NoProcError`, OSError where it
    cannot be.
    """
    process_start_ticks()  # without /proc that is what to tell, and not what follows from it
    with open_private(directory, make=True) as top:
        require_memory(top)
        return top.inside(job_names.to_directory(job), make=True)


def _lives(tid: int) -> bool:
    """Say whether a thread of this process lives; of all it is taken to be so where nobody can tell."""
    return os.path.exists(f"/proc/self/task/{tid}") or not os.path.exists(
        f"/proc/self/task/{threading.get_native_id()}"
    )


class RingFile:
    """The writing end of one ring. One process writes; threads of it may write at once.

    Raises from the constructor only, and leaves no file then: OSError (no space, no rights), `NoProcError`, and
    `NotPrivateError` where it has to open the directory itself.
    """

    def __init__(
        self, path: str, *, rank: int, local_rank: int, world: tuple[int, int], attempt: int,
        place: PrivateDir | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self.file_name = os.path.basename(path)
        start_ticks = process_start_ticks()
        self.place = place or open_private(os.path.dirname(path), make=True)  # where what belongs to the ring lies
        self.clock: Callable[[], int] = time.monotonic_ns  # another one where a ring is written of what never ran
        try:
            self._bytes = memoryview(create(self.place, self.file_name)).cast("B")
        except BaseException:
            self.place.close()
            raise
        self._all_words = self._bytes.cast("Q")
        self._words = self._bytes[layout.HEADER_BYTES : layout.GROUPS_AT].cast("Q")
        self._grow = threading.RLock()
        self._ids: dict[str, int] = {}
        self.p2p_groups: set[int] = set()  # rows of groups that have seen a send or recv
        self._lists: dict[tuple[int, int], int] = {}  # (number, digest) of members -> id of their list
        self._strings_used = self._members_used = layout.FIRST_STRING
        self._events = itertools.count()
        self._wait_stamps = itertools.count(1)
        tables = (Word.GROUPS_USED, Word.THREADS_USED, Word.PEERS_USED, Word.LOADERS_USED, Word.BUCKETS_USED)
        self._used = dict.fromkeys(tables, 0)
        self._words[Word.STRINGS_USED] = self._strings_used
        self._words[Word.MEMBERS_USED] = self._members_used
        head = layout.HEADER.pack(
            layout.MAGIC, layout.VERSION, os.getpid(), start_ticks, rank, local_rank, *world, attempt,
            layout.RING_BYTES, time.monotonic_ns(),
        )  # fmt: skip
        self._bytes[8 : len(head)] = head[8:]
        self._bytes[:8] = head[:8]  # the magic last: a reader takes the header as it is from then on

    @property
    def memory(self) -> memoryview:
        """The mapped bytes, for the native recorder."""
        return self._bytes

    @property
    def counters(self) -> tuple[Iterator[int], Iterator[int]]:
        """The numbers of operations and the stamps of waits, as the hot path in C draws them."""
        return self._events, self._wait_stamps

    @property
    def words(self) -> memoryview:
        """The live words, see `Word`."""
        return self._words

    def set_word(self, index: int, value: int) -> None:
        """Store one live word, see `Word`."""
        self._words[index] = value

    def word(self, index: int) -> int:
        """Return one live word."""
        return self._words[index]

    def string(self, text: str) -> int:
        """Return the id of a text, 0 when the table is full (counted as dropped)."""
        known = self._ids.get(text)
        if known is None:
            known = self._append(text.encode(errors="replace")[: config.TEXT_CHARS_MAX])
            if known:
                self._ids[text] = known
        return known

    def name(self, text: str) -> int:
        """Return the id of a group's name or description: there is room for those of all groups in a full table."""
        name = short_name(text)
        known = self._ids.get(name)
        if known is None:
            known = self._append(name.encode(errors="replace"), config.STRINGS_KEPT_BYTES)
            if known:
                self._ids[name] = known
        return known

    def told(self, found: Mapping[str, object], *, kept: bool = False) -> int:
        """Return the id of what `found` is as JSON, its longest texts cut where it is too long; 0: no room.

        `kept`: there is room for it in a full table too, for it is told once in a rank's life.
        """
        text = short_json(found, config.TOLD_BYTES_MAX)
        return self._append(text.encode(), config.STRINGS_KEPT_BYTES if kept else 0) if text else 0

    def _append(self, data: bytes, kept: int = 0) -> int:
        with self._grow:
            at, end = self._strings_used, self._strings_used + 2 + len(data)
            if end > config.STRINGS_BYTES_MAX - config.STRINGS_KEPT_BYTES + kept:
                self.count_dropped()
                return 0
            base = layout.STRINGS_AT
            self._bytes[base + at : base + end] = struct.pack("<H", len(data)) + data
            self._strings_used = end
            self._words[Word.STRINGS_USED] = end
            return at

    def count_dropped(self) -> None:
        """Count something that found no room, so that nothing is concluded from its absence."""
        self._words[Word.DROPPED] += 1

    def _row(self, used: int, rows_max: int, at: int, data: bytes, size: int) -> int:
        """Write the static part of a new row, then publish it. Returns its number, -1 when the table is full."""
        with self._grow:
            number = self._used[used]
            if number >= rows_max:
                self.count_dropped()
                return -1
            start = at + number * size
            self._bytes[start : start + len(data)] = data
            self._used[used] = number + 1
            self._words[used] = number + 1
            return number

    def add_group(self, name: str, desc: str, ranks: Sequence[int], enqueued: int, site: int = 0) -> int:
        """Begin a row for a process group whose first `enqueued` collectives went unseen, made at a call site."""
        members, size, digest = self._members(ranks)
        data = layout.GROUP_STATIC.pack(self.name(name), self.name(desc), members, 0)
        data += layout.GROUP_HEAD.pack(0, enqueued) + layout.GROUP_DONE.pack(enqueued, 0)
        data += layout.GROUP_LIMIT.pack(0) + layout.GROUP_SIZE.pack(size, digest) + layout.GROUP_SITE.pack(site)
        return self._row(Word.GROUPS_USED, config.GROUPS_MAX, layout.GROUPS_AT, data, layout.GROUP_BYTES)

    def _members(self, ranks: Sequence[int]) -> tuple[int, int, int]:
        """Return the id of a list of members, 0 without room (counted as dropped), with their number and digest."""
        if not ranks:  # a group has members: whoever asked for them got no answer
            self.count_dropped()
            return 0, 0, 0
        try:
            key = len(ranks), digest_of(ranks)
            known = self._lists.get(key)
            data = pack(ranks) if known is None and len(ranks) <= GROUP_MEMBERS_MAX else b""
        except (TypeError, ValueError, OverflowError):  # no ranks
            self.count_dropped()
            return 0, 0, 0
        if known is None:
            known = self._lists[key] = self._append_members(data)
        return known, *key

    def _append_members(self, data: bytes) -> int:
        with self._grow:
            at = self._members_used
            begin, end = at + layout.MEMBER_LIST.size, at + layout.MEMBER_LIST.size + len(data)
            if not data or end > config.MEMBERS_BYTES_MAX:
                self.count_dropped()
                return 0
            base = layout.MEMBERS_AT
            self._bytes[base + at : base + begin] = layout.MEMBER_LIST.pack(len(data))
            self._bytes[base + begin : base + end] = data
            self._members_used = end
            self._words[Word.MEMBERS_USED] = end
            return at

    def flag_group(self, number: int, flag: int) -> None:
        """Set the flags of a group."""
        at = layout.GROUPS_AT + number * layout.GROUP_BYTES + 12
        self._bytes[at : at + 4] = struct.pack("<I", flag)

    def limit_group(self, number: int, timeout_ms: int) -> None:
        """Store after how long a group's backend gives an operation up; 0: unknown."""
        at = layout.GROUPS_AT + number * layout.GROUP_BYTES + layout.GROUP_LIMIT_AT
        self._bytes[at : at + layout.GROUP_LIMIT.size] = layout.GROUP_LIMIT.pack(min(timeout_ms, 0xFFFFFFFF))

    def set_group(self, number: int, frontier: tuple[int, int, int, int]) -> None:
        """Store (prefix hash, enqueued, completed, number of the newest event + 1) of a group."""
        at = layout.GROUPS_AT + number * layout.GROUP_BYTES + 16
        self._bytes[at : at + 32] = layout.GROUP_FRONTIER.pack(*frontier)

    def set_group_head(self, number: int, prefix_hash: int, enqueued: int) -> None:
        """Store the frontier of what this rank issued in a group."""
        at = layout.GROUPS_AT + number * layout.GROUP_BYTES + 16
        self._bytes[at : at + 16] = layout.GROUP_HEAD.pack(prefix_hash, enqueued)

    def group_enqueued(self, number: int) -> int:
        """Return how many collectives of a group this rank has issued, whichever recorder counts them."""
        at = layout.GROUPS_AT + number * layout.GROUP_BYTES + 16
        return int(layout.GROUP_HEAD.unpack(self._bytes[at : at + 16])[1])

    def set_group_done(self, number: int, completed: int, newest_event: int) -> None:
        """Store how far a group's operations are through on this rank."""
        at = layout.GROUPS_AT + number * layout.GROUP_BYTES + 32
        self._bytes[at : at + 16] = layout.GROUP_DONE.pack(completed, newest_event + 1)

    def add_thread(self, tid: int, main: bool) -> int:
        """Begin a row for a thread, or take that of one that has ended. -1: as many live as there are rows.

        A job may start a thread for each checkpoint, for ever.
        """
        data = layout.THREAD_STATIC.pack(tid, int(main), 0) + layout.MAKING.pack(0, 0, 0)
        with self._grow:
            used = self._used[Word.THREADS_USED]
            if used >= min(config.THREADS_KEPT, config.THREADS_MAX):
                number = next(
                    (row for row in range(used) if self.thread_tid(row) == tid or not _lives(self.thread_tid(row))), -1
                )
                if number >= 0:
                    self._take_over(number, data)
                    return number
        return self._row(Word.THREADS_USED, config.THREADS_MAX, layout.THREADS_AT, data, layout.THREAD_BYTES)

    def _take_over(self, number: int, data: bytes) -> None:
        """Let a row be that of another thread: first away with all that the one before has said."""
        self.set_wait(number, NO_WAIT)
        for at, size in ((layout.SAMPLES_AT, layout.SAMPLE_BYTES), (layout.SAVES_AT, layout.SAVE_BYTES)):
            end = at + (number + 1) * size
            self._bytes[end - 8 : end] = bytes(8)
        start = layout.THREADS_AT + number * layout.THREAD_BYTES
        self._bytes[start : start + len(data)] = data

    def thread_tid(self, number: int) -> int:
        """Return the native id of the thread that a row is of."""
        at = layout.THREADS_AT + number * layout.THREAD_BYTES
        return int.from_bytes(self._bytes[at : at + 4], "little")

    def set_thread_issued(self, number: int, issued: int) -> None:
        """Store how many operations a thread has issued."""
        self._all_words[(layout.THREADS_AT + number * layout.THREAD_BYTES + 8) // 8] = issued

    def thread_issued(self, number: int) -> int:
        """Return how many operations a thread has issued."""
        return self._all_words[(layout.THREADS_AT + number * layout.THREAD_BYTES + 8) // 8]

    def wait(self, site: int, seq: int, group: int, kind: int, op: int, peer: int) -> bytes:
        """Return the bytes of a wait that begins now; kind is an index into `WAITS` plus one."""
        stamp = next(self._wait_stamps) & 0xFFFFFFFF or 1
        since = self.clock()
        return layout.WAIT.pack(stamp, since, site, stamp, seq & 0xFFFFFFFF, group, kind, op, peer)

    def set_wait(self, thread: int, data: bytes) -> None:
        """Say what a thread is inside of; `NO_WAIT` says nothing."""
        at = layout.THREADS_AT + thread * layout.THREAD_BYTES + layout.WAIT_AT
        self._bytes[at : at + layout.WAIT.size] = data

    def set_making(self, thread: int, ranks: Sequence[int]) -> None:
        """Say who has to come to the `new_group` that a thread is about to wait in; nobody: all, or not known."""
        at = layout.THREADS_AT + thread * layout.THREAD_BYTES + layout.MAKING_AT
        known = self._members(ranks) if ranks else (0, 0, 0)
        self._bytes[at : at + layout.MAKING.size] = layout.MAKING.pack(*known)

    def add_peer(self, group: int, peer: int) -> int:
        """Begin a row of p2p counters."""
        self.p2p_groups.add(group)
        data = layout.PEER_STATIC.pack(group, 0, peer, 0, 0) + bytes(16)
        return self._row(Word.PEERS_USED, config.PEERS_MAX, layout.PEERS_AT, data, layout.PEER_BYTES)

    def set_peer(self, number: int, counts: Sequence[int], first: int = PeerWord.SENDS) -> None:
        """Store words of a row of p2p counters, from one of `PeerWord` on; by default the four counts."""
        at = layout.PEERS_AT + number * layout.PEER_BYTES + 4 * first
        self._bytes[at : at + 4 * len(counts)] = struct.pack(f"<{len(counts)}I", *counts)

    def add_loader(self, site: int) -> int:
        """Begin a row for a place that iterates over a DataLoader."""
        data = layout.LOADER_STATIC.pack(site, 0, 0) + bytes(32)
        return self._row(Word.LOADERS_USED, config.LOADERS_MAX, layout.LOADERS_AT, data, layout.LOADER_BYTES)

    def set_loader(self, number: int, site: int, passes: int, length: int) -> None:
        """Store that a pass over a loader has begun."""
        at = layout.LOADERS_AT + number * layout.LOADER_BYTES
        self._bytes[at : at + 16] = layout.LOADER_STATIC.pack(site, passes, length)

    def set_loader_counts(self, number: int, drawn: int, ended_pass: int) -> None:
        """Store batches drawn in the latest pass, and which pass was the latest to end by itself."""
        at = layout.LOADERS_AT + number * layout.LOADER_BYTES + 16
        self._bytes[at : at + 16] = layout.LOADER_COUNTS.pack(drawn, ended_pass)

    def set_loader_drawn(self, number: int, drawn: int) -> None:
        """Store batches drawn in the latest pass alone: it is on the path of every batch."""
        self._all_words[_LOADERS_DRAWN + number * _LOADER_WORDS] = drawn

    def set_loader_last(self, number: int, last_drawn: int) -> None:
        """Store the batches of the pass that ended by itself."""
        at = layout.LOADERS_AT + number * layout.LOADER_BYTES + 32
        self._bytes[at : at + 8] = struct.pack("<Q", last_drawn)

    def set_loader_flags(self, number: int, flags: int) -> None:
        """Store the flags of the pass that begins."""
        at = layout.LOADERS_AT + number * layout.LOADER_BYTES + 40
        self._bytes[at : at + 8] = struct.pack("<Q", flags)

    def add_bucket(self, loader: int, name: str) -> int:
        """Begin a row for a data bucket of a loader; -1: there is no room, which is no loss of operations."""
        if self._used[Word.BUCKETS_USED] >= config.BUCKETS_MAX:
            return -1
        data = layout.BUCKET_STATIC.pack(loader, self.string(name), 0) + bytes(32)
        return self._row(Word.BUCKETS_USED, config.BUCKETS_MAX, layout.BUCKETS_AT, data, layout.BUCKET_BYTES)

    def begin_bucket(self, number: int, passes: int) -> None:
        """Store that a pass counts batches of a bucket."""
        at = layout.BUCKETS_AT + number * layout.BUCKET_BYTES + 16
        self._bytes[at : at + 16] = layout.BUCKET_COUNT.pack(passes, 0)

    def set_bucket_drawn(self, number: int, drawn: int) -> None:
        """Store how many batches of a bucket the pass has given."""
        self._all_words[_BUCKETS_DRAWN + number * _BUCKET_WORDS] = drawn

    def add_bucket_cost(self, number: int, worked_ns: int) -> None:
        """Add a batch of a bucket that the rank has worked on for so long."""
        at = _BUCKETS_DRAWN + number * _BUCKET_WORDS + 1
        self._all_words[at] += 1
        self._all_words[at + 1] += worked_ns

    def kept_ns(self) -> int:
        """Return how long this rank has not worked, in all: blocked by others, or waiting for data."""
        words = self._words
        return words[_WAITED_NS] + words[Word.PEERS_WAITED_NS] + words[Word.DATA_NS]

    def add_time(self, word: int, nanoseconds: int) -> None:
        """Add to a running total. Of two threads that do so at once one may be lost."""
        self._words[word] += nanoseconds

    def meter(self, group: int, seq: int, blocked_ns: int, now_ns: int = 0) -> None:
        """Add how long this rank was blocked in a collective of a group, at its end: now, if that is not said.

        The slot is the highest bit that changes from the newest sequence number to this one: see METER_SLOT.
        """
        total = self._words[_WAITED_NS]
        self._words[_WAITED_NS] = total + blocked_ns
        if group >= _METERS_MAX:
            return
        head = _METER_HEADS + group * _METER_WORDS
        before = self._all_words[head]
        if seq > before:
            slot = (before ^ seq).bit_length() - 1
            if slot > _LAST_SLOT:
                slot = _LAST_SLOT
            at = _SLOTS_AT + group * _METER_BYTES + slot * _SLOT_BYTES
            now_ms = (now_ns or time.monotonic_ns()) // 1_000_000 & 0xFFFFFFFF or 1
            self._bytes[at : at + _SLOT_BYTES] = _pack_slot((seq >> slot << slot) & 0xFFFFFFFF, now_ms, total)
            self._all_words[head] = seq

    def metered(self, group: int) -> int:
        """Return up to which collective of a group the meter goes."""
        return int(self._all_words[_METER_HEADS + group * _METER_WORDS]) if group < _METERS_MAX else 0

    def newest_operation(self) -> tuple[int, int, int, int, int]:
        """Return (events so far, time, group, op, seq) of the newest operation, zeros but for the first if torn."""
        number = self._words[_EVENTS_HEAD]
        if not number:
            return 0, 0, 0, 0, 0
        at = _EVENTS_AT + (number - 1) % _EVENTS_MAX * 64
        found = layout.EVENT.unpack(self._bytes[at : at + 64])
        return (number, found[1], found[2], found[3], found[10]) if found[0] == found[8] else (number, 0, 0, 0, 0)

    def group_flags(self, number: int) -> int:
        """Return the flags of a group."""
        at = layout.GROUPS_AT + number * layout.GROUP_BYTES + 12
        return int.from_bytes(self._bytes[at : at + 4], "little")

    def add_event(  # noqa: PLR0913 - one argument for each field; packing them first would cost more than the store
        self,
        group: int,
        op: int,
        thread: int,
        numel: int,
        site: int,
        prefix: int,
        seq: int,
        batch: int,
        forwards: int,
        signature: int,
    ) -> int:
        """Append one operation; batch and signature are the packed words of the layout. Returns its number."""
        number = next(self._events)
        stamp = (number + 1) & 0xFFFFFFFF or 1  # layout.event_stamp
        at = _EVENTS_AT + number % _EVENTS_MAX * 64
        self._bytes[at : at + 64] = _pack_event(
            stamp, self.clock(), group, op, thread, stamp, numel, site, stamp, prefix, seq & 0xFFFFFFFF,
            stamp, batch, forwards & 0xFFFFFFFF, signature,
        )  # fmt: skip
        if self._words[_EVENTS_HEAD] <= number:  # else another thread has come further
            self._words[_EVENTS_HEAD] = number + 1
        return number

    def set_sample(self, index: int, since_ns: int, found: dict[str, object]) -> None:
        """Store what was seen of a thread. Only the pulse thread may call this, and a thread for its own new row."""
        text = json.dumps(found, separators=(",", ":")).encode()
        frames = found.get("frames")
        while len(text) > layout.SAMPLE_TEXT_MAX and isinstance(frames, list) and len(frames) > 1:
            frames.pop()  # the outermost tell least
            text = json.dumps(found, separators=(",", ":")).encode()
        if len(text) > layout.SAMPLE_TEXT_MAX:  # the one before must not stay: the thread would seem to stand there
            text = short_json(found, layout.SAMPLE_TEXT_MAX).encode() or b"{}"
            self.count_dropped()
        at = layout.SAMPLES_AT + index * layout.SAMPLE_BYTES
        stamp = next(self._wait_stamps)
        self._bytes[at + layout.SAMPLE_BYTES - 8 : at + layout.SAMPLE_BYTES] = bytes(8)
        body = layout.SAMPLE_HEAD.pack(stamp, since_ns, len(text)) + text
        self._bytes[at : at + len(body)] = body
        self._bytes[at + layout.SAMPLE_BYTES - 8 : at + layout.SAMPLE_BYTES] = struct.pack("<Q", stamp)

    def set_save(self, thread: int, times: tuple[int, int], site: int, said: dict[str, str]) -> None:
        """Store the newest save of a thread, see `rows.SaveRow`; `times`: when it began and ended (0: not yet).

        Only that thread may call this for its row.
        """
        text = json.dumps(said, separators=(",", ":")).encode()
        path = said.get("path", "")
        while len(text) > layout.SAVE_TEXT_MAX and path:
            path = path[len(path) // 4 + 1 :]  # its end tells most; without its beginning it is a path no more
            text = json.dumps({**said, "path": f"...{path}"}, separators=(",", ":")).encode()
        if len(text) > layout.SAVE_TEXT_MAX:  # what it raised is long
            text = short_json({**said, "path": ""}, layout.SAVE_TEXT_MAX).encode() or b"{}"
            self.count_dropped()
        at = layout.SAVES_AT + thread * layout.SAVE_BYTES
        end = at + layout.SAVE_BYTES
        stamp = next(self._wait_stamps)
        self._bytes[end - 8 : end] = bytes(8)
        body = layout.SAVE_HEAD.pack(stamp, *times, site, len(text)) + text
        self._bytes[at : at + len(body)] = body
        self._bytes[end - 8 : end] = struct.pack("<Q", stamp)

    def close(self) -> None:
        """Unmap the ring. The file stays for the agent, which removes it."""
        self._words.release()
        self._all_words.release()
        self._bytes.release()
        self.place.close()
