"""Lays out digests: what a node says of each rank of a job once a second, as fixed rows of numbers.

A digest is little-endian: DIGEST_HEAD, then `ranks` rows of RANK_ROW, then `groups` rows of GROUP_ROW. Both ends derive
their parsers from the same field lists, so the server can hand the bytes to numpy as they are.
"""

import struct

from ncclwatch.contract import config
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.rank import ProcessState, WaitKind

RANK_FIELDS = (
    ("rank", "i4"),
    ("state", "u1"),  # index into PROCESS_STATES
    ("ended", "u1"),  # 1: the process is gone or said how it ended
    ("initialised", "u1"),
    ("detached", "u1"),
    ("pulse_age_s", "f4"),
    ("wait_age_s", "f4"),  # of the oldest wait that only peers can end; 0: none
    ("issued", "u8"),  # operations this rank issued
    ("completed", "u8"),  # collectives of it that are through, in all groups
    ("steps", "u8"),
    ("waits_in", "u8"),  # `groups.group_key` of the group it waits in, 0: it waits in none, or nobody can tell
    ("waits_for", "i4"),  # the rank on the other side of a send or recv; -1: anyone, or no such wait
    ("wait_kind", "i4"),  # index into WAIT_KINDS of the oldest wait that only peers can end; -1: none
    (
        "saves_to",
        "u8",
    ),  # `groups.text_key` of the file of a save under way or just over; SAVE_TROUBLE; 0: none
    ("device", "u8"),  # `groups.text_key` of the GPU, if no other rank may use it; 0: unknown, or it may be shared
    ("noted", "i4"),  # 1: the rank has just found something about itself that its view tells
    # How long it had been blocked in collectives (of all groups) as of one collective of a group: see `ring.MeterRow`.
    ("pace_group", "u8"),  # the key of that group, 0: nothing is known
    ("pace_waited_ns", "u8"),
    ("pace_seq", "u4"),
    ("pace_ms", "u4"),  # when, on the rank's own clock
    # Running totals in ms, modulo 2^32: what kept the rank from its work.
    ("data_ms", "u4"),  # in the next() of loaders
    ("gc_ms", "u4"),  # in Python's garbage collector
    ("save_ms", "u4"),  # in saves
    ("peers_ms", "u4"),  # blocked in sends and receives
    ("queued_ms", "u4"),  # its main thread was ready to run and got no core
    ("ran_ms", "u4"),  # its main thread had a core
    ("throttled_ms", "u4"),  # its control group had used up its CPU quota
    ("stolen_ms", "u4"),  # a core of its machine went to another virtual machine, per core
    ("stopped_ms", "u4"),  # it was seen stopped
    ("disk_ms", "u4"),  # it was seen in an uninterruptible wait
    ("gpu_slow", "u4"),  # GpuSlow bits of its device
)
GROUP_FIELDS = (
    ("rank", "i4"),
    ("pending_age_s", "f4"),  # of the oldest unfinished operation; 0: none
    ("group", "u8"),  # `groups.group_key`: it stands for the name and the members
    ("enqueued", "u8"),
    ("prefix_hash", "u8"),
    ("unfinished", "u4"),  # of those enqueued
    ("name", "u4"),  # `groups.name_key`
)
WAIT_KINDS: tuple[WaitKind, ...] = tuple(WaitKind)
NO_WAIT = (0, -1, -1)  # the values from waits_in on of a rank that waits for nobody
NO_PACE = (0,) * 15  # from pace_group on
NO_FACTS = (0, 0, 0, *NO_PACE)  # and the values from saves_to on of one with nothing to tell
SAVE_TROUBLE = 1  # a save of it failed, or cannot succeed
_CODES = {"i4": "i", "f4": "f", "u1": "B", "u4": "I", "u8": "Q"}
RANK_ROW = struct.Struct("<" + "".join(_CODES[kind] for _, kind in RANK_FIELDS))
GROUP_ROW = struct.Struct("<" + "".join(_CODES[kind] for _, kind in GROUP_FIELDS))
DIGEST_HEAD = struct.Struct("<4sHHIII")  # magic, protocol, unused, job index, ranks, groups
DIGEST_MAGIC = b"NWDG"
PROCESS_STATES: tuple[ProcessState, ...] = tuple(ProcessState)


def pack_digest(index: int, ranks: list[tuple[float, ...]], groups: list[tuple[float, ...]]) -> bytes:
    """Return a digest. Each tuple holds the values of RANK_FIELDS or GROUP_FIELDS in order.

    `index` is the job's number of its `Announce`. Raises struct.error where a value does not fit its field.
    """
    parts = [DIGEST_HEAD.pack(DIGEST_MAGIC, config.PROTOCOL, 0, index, len(ranks), len(groups))]
    parts += [RANK_ROW.pack(*row) for row in ranks]
    parts += [GROUP_ROW.pack(*row) for row in groups]
    return b"".join(parts)


def split_digest(data: bytes) -> tuple[int, memoryview, memoryview]:
    """Return (job index, bytes of the rank rows, bytes of the group rows). Raises `WireError`."""
    if len(data) < DIGEST_HEAD.size:
        raise WireError(f"a digest of {len(data)} bytes is shorter than its head of {DIGEST_HEAD.size}")
    magic, protocol, _, index, ranks, groups = DIGEST_HEAD.unpack_from(data)
    if magic != DIGEST_MAGIC:
        raise WireError(f"a binary message that begins with {bytes(magic)!r} is no digest")
    if protocol != config.PROTOCOL:
        raise WireError(
            f"a digest of protocol {protocol}, this server speaks {config.PROTOCOL}; "
            "install the same version of ncclwatch on the nodes and on the server"
        )
    middle = DIGEST_HEAD.size + ranks * RANK_ROW.size
    if len(data) != middle + groups * GROUP_ROW.size:
        raise WireError(f"a digest of {len(data)} bytes says it has {ranks} ranks and {groups} groups: truncated?")
    view = memoryview(data)
    return index, view[DIGEST_HEAD.size : middle], view[middle:]
