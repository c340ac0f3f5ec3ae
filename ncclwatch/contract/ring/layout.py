"""Lays out the bytes of a ring file, in which a rank leaves its marks.

A ring is a plain file, mapped by one writing process and readable by anyone at any
moment, also after the writer got SIGKILL. Nothing in it needs a lock:

- Words are 8 bytes, aligned, written by one store each.
- Everything bigger is made of *cells* of 16 bytes. A vector store of 16 aligned bytes is
  not torn on x86-64 and arm64, whatever the order in which memcpy copies them. A structure of
  several cells repeats one stamp in each: the reader takes a copy, and believes it only if
  all stamps agree.
  The writer stores slices of its map: `struct` writes byte by byte, and would tear. How it is read: see `reader`.
- Strings are append-only; a string's id is its offset, and a published id is complete.

    header 512 B │ live words 512 B │ groups │ threads │ peers │ loaders │ samples │ strings │ events │ buckets │ saves
    │ meters │ members

Clocks are CLOCK_MONOTONIC of the node, in ns; readers on the same node turn them into ages.
"""

import struct

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import Op, WaitKind

MAGIC = b"NCCLWRNG"
VERSION = 5

HEADER_BYTES = 512
WORDS_BYTES = 512
GROUP_BYTES = 80  # of each row whole cells of 16 bytes: C++ stores a cell at once, and only where it is aligned
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
    BACKWARD_SITE = 22  # string id: where the backward() was called that runs now; 0: none runs
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
    FREE_THREADS = 32  # threads of Python without a row that may act by themselves, see `free_threads`
    GROUPS_HELD = 33  # groups that torch knew on this rank when a thread last came to new_group; 0: unknown
    LOCK_POLLED = 34  # inode of the file whose lock the main thread tried to take last, and did not get; 0: it got it
    LOCK_SINCE_NS = 35  # first of these tries
    LOCK_TRIED_NS = 36  # last of them
    GROUPS_COUNTED = 37  # groups that torch had counted here after init_process_group or new_group; 0: unknown


FIRST_STRING = 4  # id 0 means "no text", or "no list of members"
STRING_LENGTH = struct.Struct("<H")
WORDS = struct.Struct("<38Q")  # up to the last in use


class Flag:
    """Bits of a group row."""

    DESTROYED = 1
    ASYNC = 2  # returning from wait() says nothing: a device waits, and the host runs ahead
    BLIND = 4  # nobody tells what of it is complete
    LATE = 8  # it had issued operations before anybody recorded them: its hash begins in the middle


class PeerWord:
    """Words of 4 bytes in a row of p2p counters."""

    GROUP_AND_FLAGS = 0
    SENDS_WAITED = 2
    RECVS_WAITED = 3
    SENDS = 4
    SENDS_COMPLETED = 5
    RECVS = 6
    RECVS_COMPLETED = 7


class PeerFlag:
    """Bits of a row of p2p counters."""

    TOLD = 1  # the others are known; they hold while the group is not BLIND
    SENDING = 2  # the device is in the oldest send that is not through
    RECEIVING = 4


class LoaderFlag:
    """Bits of a loader row."""

    EVEN = 1  # ranks with unequal numbers of batches do not wait for each other: even_batches or Join sees to it


# Group row.
GROUP = struct.Struct("<IIIIQQQQIIQI12x")  # all of it, and by parts:
GROUP_STATIC = struct.Struct("<IIII")  # name id, description id, member list id (0: it found no room), flags
GROUP_HEAD = struct.Struct("<QQ")  # prefix hash, enqueued
GROUP_DONE = struct.Struct("<QQ")  # completed, index + 1 of this group's newest event
GROUP_FRONTIER = struct.Struct("<QQQQ")  # head and done
GROUP_LIMIT = struct.Struct("<I")  # timeout of its operations in ms, 0: unknown
GROUP_LIMIT_AT = 48
GROUP_SIZE = struct.Struct("<IQ")  # number and digest of its members, whether or not their list found room
GROUP_SIZE_AT = 52
GROUP_SITE = struct.Struct("<I12x")  # id of the call site that made it, 0: unknown
MEMBER_LIST = struct.Struct("<I")  # bytes of `members.pack` that follow; its id is its offset, as of a string
# Thread row: a static cell, the members of the group that it makes, a wait of two stamped cells.
THREAD_STATIC = struct.Struct("<IIQ")  # native thread id, 1 for the main thread, issued
WAIT = struct.Struct("<IQIIIHBBi")  # stamp, since, site | stamp, seq, group, kind, op, peer
MAKING = struct.Struct("<IIQ")  # id of the list of these members, their number, their digest; before the wait
MAKING_AT = 16
MAKING_MEMBERS_MAX = 1024  # they travel with the wait; of a bigger group they are not told
WAIT_AT = 32
# group index, `PeerFlag`s, peer (-1: a receive from anyone), `waited_word` of sends and of recvs
PEER_STATIC = struct.Struct("<HHiII")
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


def event_stamp(index: int) -> int:
    """Return the stamp of event number `index`: never 0, and another one for each pass over the ring."""
    return (index + 1) & 0xFFFFFFFF or 1


WAITED_BITS = 20  # of the newest message that was waited for; above them: how many up to it, without a gap
WAITED_RUN_MAX = 0xFFF


def waited_word(newest: int, run: int) -> int:
    """Return what a row of p2p counters says of the messages that were waited for, as 32 bits."""
    return min(run, WAITED_RUN_MAX) << WAITED_BITS | newest & (1 << WAITED_BITS) - 1


def waited_span(word: int, issued: int) -> tuple[int, int]:
    """Return the first and the last message that such a word tells of, of so many issued; (1, 0): none."""
    run, low = word >> WAITED_BITS, word & (1 << WAITED_BITS) - 1
    last = issued - (issued - low) % (1 << WAITED_BITS)
    return (last - run + 1, last) if run and last > 0 else (1, 0)
