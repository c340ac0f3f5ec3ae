"""How agents and the server talk: one WebSocket per agent and server, JSON for words, bytes for digests.

Agent to server: `Hello` first, then an `Announce` for each job on the node, then a binary
digest per job and second, and `Views`, `Stacks`, `Testimonies`, `Loops`, `Facts`, `Parameters` and `Gone` when there is
something to say.
Server to agent: `Welcome` or `Refused`, then `Command`s and `JobRefused`. Commands are a closed list.

A digest is little-endian: DIGEST_HEAD, then `ranks` rows of RANK_ROW, then `groups` rows of
GROUP_ROW. Both ends derive their parsers from the same field lists, so the server can hand the
bytes to numpy as they are.
"""

import re
import struct
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

import msgspec

from ncclwatch.contract import config, foreign_json
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.preflight import RankFacts
from ncclwatch.contract.model.rank import ChildStack, ProcessState, RankView, StackDump, StackFrame, WaitKind
from ncclwatch.contract.model.testimony import Communicator, Testimony
from ncclwatch.contract.ring import members
from ncclwatch.contract.undecodable import UNDECODABLE

AGENT_PATH = "/ws/agent"  # route of the WebSocket

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


class CommandKind(str, Enum):
    """All that a server may ask of an agent."""

    INSPECT = "inspect"  # answer with Views of these ranks
    STACKS = "stacks"  # answer with Stacks of these ranks
    WITNESS = "witness"  # answer with the Testimonies of these ranks
    PARAMETERS = "parameters"  # answer with what these ranks have wrapped; `text`: the kind and the ranks it is for
    PRINT = "print"  # put `text` on the terminal of the job


class Hello(msgspec.Struct, tag="hello", frozen=True, kw_only=True):
    """First message of an agent."""

    protocol: int
    agent: str  # random, one per agent process
    host: str
    version: str
    wall_s: float = 0.0  # seconds since 1970 on this host when it was sent; 0: it does not say. Told, never judged by


class Announce(msgspec.Struct, tag="announce", frozen=True, kw_only=True):
    """A job on this node, and the number its digests carry on this connection."""

    index: int
    job: str
    instance: str  # tells two launches with one name apart: launcher's address, run id
    attempt: int
    world_size: int
    ranks: tuple[int, ...]  # the ranks on this node seen so far
    terminal: bool  # whether a verdict should be printed on the job's terminal


class Views(msgspec.Struct, tag="views", frozen=True, kw_only=True):
    """Full views of ranks: the answer to INSPECT, or unasked when a rank ended."""

    index: int
    ranks: tuple[RankView, ...]
    reply_to: int = 0  # id of the command; 0: unasked


class UnreadViews(msgspec.Struct, tag="views", frozen=True, kw_only=True):
    """Views as they came: a rank with a long history takes a millisecond or two to decode."""

    index: int
    ranks: tuple[msgspec.Raw, ...]
    reply_to: int = 0

    def read(self, world_size: int = members.GROUP_MEMBERS_MAX) -> Views:
        """Decode them, one rank after the other, so that another thread gets its turn. Members stay runs.

        Raises `WireError`, also where a group names ranks that a job of so many ranks has not.
        """
        views = tuple([_view(bytes(raw), world_size) for raw in self.ranks])
        return Views(index=self.index, ranks=views, reply_to=self.reply_to)


class Stacks(msgspec.Struct, tag="stacks", frozen=True, kw_only=True):
    """The answer to STACKS."""

    index: int
    dumps: tuple[StackDump, ...]
    reply_to: int = 0
    more: bool = False  # this answer goes on in a further message


class Testimonies(msgspec.Struct, tag="testimonies", frozen=True, kw_only=True):
    """The answer to WITNESS: what torch's Flight Recorder and NCCL's RAS say."""

    index: int
    ranks: tuple[Testimony, ...]
    communicators: tuple[Communicator, ...] = ()  # of the whole job, as far as a process of this node is in them
    reply_to: int = 0


class Loop(msgspec.Struct, array_like=True, frozen=True):
    """The loop over data that a rank is in, or was in last."""

    rank: int
    loader: str  # "file:line" of the loop: the same on all ranks that run it
    number: int  # of the pass
    drawn: int
    length: int  # that the loader says it has; 0: it does not say
    ended: bool  # the pass ended by itself
    even: bool  # even_batches or Join sees to it that ranks with unequal counts do not wait for each other
    buckets: tuple[tuple[str, int], ...] = ()  # (data bucket, batches of it in this pass), the largest first
    function: str = ""  # that the loop is in
    costs: tuple[tuple[str, int, float], ...] = ()  # (data bucket, batches timed, seconds worked on them) in all passes


class Loops(msgspec.Struct, tag="loops", frozen=True, kw_only=True):
    """The loops of the ranks on this node: when one begins or ends, and now and then."""

    index: int
    ranks: tuple[Loop, ...]


class Alike(msgspec.Struct, array_like=True, frozen=True):
    """Ranks of one node that say the same of how they were set up."""

    ranks: tuple[int, ...]
    facts: RankFacts


class Facts(msgspec.Struct, tag="facts", frozen=True, kw_only=True):
    """How all ranks of the job on this node were set up: first, and whenever it changes for one of them."""

    index: int
    alike: tuple[Alike, ...]
    joined: tuple[int, ...] = ()  # ranks that have come to init_process_group, and are no child of another rank
    twice: tuple[int, ...] = ()  # of which another process on this node says the same


class Parameters(msgspec.Struct, tag="parameters", frozen=True, kw_only=True):
    """The answer to PARAMETERS: by name, type and shape, for each of the ranks asked."""

    index: int
    key: tuple[str, str]  # of ModelFacts
    ranks: tuple[tuple[int, tuple[str, ...]], ...]
    reply_to: int = 0


class Gone(msgspec.Struct, tag="gone", frozen=True, kw_only=True):
    """All ranks of the job on this node have ended; no more digests follow."""

    index: int


class Welcome(msgspec.Struct, tag="welcome", frozen=True, kw_only=True):
    """The server takes this agent's news."""

    server: str
    version: str


class Refused(msgspec.Struct, tag="refused", frozen=True, kw_only=True):
    """The server does not; `reason` is a sentence for people."""

    reason: str


class JobRefused(msgspec.Struct, tag="job_refused", frozen=True, kw_only=True):
    """The server does not watch one job, of which it wants no more news; `reason` is a sentence for people."""

    index: int
    reason: str


class Command(msgspec.Struct, tag="command", frozen=True, kw_only=True):
    """Something the server wants from this node."""

    id: int
    kind: CommandKind
    index: int
    ranks: tuple[int, ...] = ()
    text: str = ""
    deeply: bool = False  # of STACKS: with native frames and children, where they may tell more


class _LongDump(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    threads: tuple[msgspec.Raw, ...] = ()
    failure: str = ""
    native: tuple[msgspec.Raw, ...] = ()
    children: tuple[msgspec.Raw, ...] = ()

    def read(self) -> StackDump:
        """Decode it, one thread after the other. Raises `WireError`."""
        return StackDump(
            rank=self.rank,
            threads=_elements(_thread_decoder, self.threads),
            failure=self.failure,
            native=_elements(_frame_decoder, self.native),
            children=_elements(_child_decoder, self.children),
        )


class _LongStacks(msgspec.Struct, tag="stacks", frozen=True, kw_only=True):
    index: int
    dumps: tuple[msgspec.Raw, ...]
    reply_to: int = 0
    more: bool = False


class _LongTestimonies(msgspec.Struct, tag="testimonies", frozen=True, kw_only=True):
    index: int
    ranks: tuple[msgspec.Raw, ...]
    communicators: tuple[msgspec.Raw, ...] = ()
    reply_to: int = 0


class _LongFacts(msgspec.Struct, tag="facts", frozen=True, kw_only=True):
    index: int
    alike: tuple[msgspec.Raw, ...]
    joined: tuple[int, ...] = ()
    twice: tuple[int, ...] = ()


class _LongParameters(msgspec.Struct, tag="parameters", frozen=True, kw_only=True):
    index: int
    key: tuple[str, str]
    ranks: tuple[msgspec.Raw, ...]
    reply_to: int = 0


ReadNews = Stacks | Testimonies | Loops | Facts | Parameters | Gone
JobNews = Views | ReadNews
AgentMessage = Hello | Announce | JobNews
UnreadMessage = Hello | Announce | UnreadViews | ReadNews
_Thread = tuple[str, tuple[StackFrame, ...]]
_Long = Hello | Announce | UnreadViews | _LongStacks | _LongTestimonies | _LongFacts | _LongParameters | Loops | Gone
ServerMessage = Welcome | Refused | JobRefused | Command

T = TypeVar("T")

_KIND = re.compile(rb'\{"type":"([a-z]{1,20})"')

_encoder = msgspec.json.Encoder()
_view_decoder: msgspec.json.Decoder[RankView] = msgspec.json.Decoder(RankView)
_agent_decoder: msgspec.json.Decoder[UnreadMessage] = msgspec.json.Decoder(UnreadMessage)
_long_decoder: msgspec.json.Decoder[_Long] = msgspec.json.Decoder(_Long)
_dump_decoder: msgspec.json.Decoder[_LongDump] = msgspec.json.Decoder(_LongDump)
_thread_decoder: msgspec.json.Decoder[_Thread] = msgspec.json.Decoder(_Thread)
_frame_decoder: msgspec.json.Decoder[StackFrame] = msgspec.json.Decoder(StackFrame)
_child_decoder: msgspec.json.Decoder[ChildStack] = msgspec.json.Decoder(ChildStack)
_testimony_decoder: msgspec.json.Decoder[Testimony] = msgspec.json.Decoder(Testimony)
_communicator_decoder: msgspec.json.Decoder[Communicator] = msgspec.json.Decoder(Communicator)
_alike_decoder: msgspec.json.Decoder[Alike] = msgspec.json.Decoder(Alike)
_parameters_decoder: msgspec.json.Decoder[tuple[int, tuple[str, ...]]] = msgspec.json.Decoder(
    tuple[int, tuple[str, ...]]
)
_server_decoder: msgspec.json.Decoder[ServerMessage] = msgspec.json.Decoder(ServerMessage)


def encode(message: AgentMessage | ServerMessage) -> bytes:
    """Return a message as JSON."""
    if isinstance(message, Views):
        message = msgspec.structs.replace(message, ranks=tuple(map(members.packed, message.ranks)))
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:  # a name on this machine that is no text: a path, a thread, an argument
        return _encoder.encode(foreign_json.whole(msgspec.to_builtins(message)))


def decode_from_agent(data: bytes | str) -> AgentMessage:
    """Parse what an agent sent. Raises `WireError` with a sentence on anything else."""
    message = open_from_agent(data)
    if not isinstance(message, UnreadViews):
        return message
    views = message.read()
    return msgspec.structs.replace(views, ranks=members.unpacked(views.ranks))


def open_from_agent(data: bytes | str) -> UnreadMessage:
    """Parse what an agent sent, but for the views of ranks. Raises `WireError` with a sentence on anything else."""
    return _decode(_agent_decoder, data, "an agent")


def read_long(data: bytes, world_sizes: Mapping[int, int] = MappingProxyType({})) -> AgentMessage:
    """Parse a long message of an agent, one element after the other, so that another thread gets its turn.

    `world_sizes`: of the jobs that it may be of, by their number. Raises `WireError`.
    """
    message = _decode(_long_decoder, data, "an agent")
    if isinstance(message, UnreadViews):
        _count(message.ranks)
        return message.read(world_sizes.get(message.index, members.GROUP_MEMBERS_MAX))
    if isinstance(message, _LongStacks):
        dumps = tuple([dump.read() for dump in _elements(_dump_decoder, message.dumps)])
        return Stacks(index=message.index, dumps=dumps, reply_to=message.reply_to, more=message.more)
    if isinstance(message, _LongTestimonies):
        said = _elements(_testimony_decoder, message.ranks)
        known = _elements(_communicator_decoder, message.communicators)
        return Testimonies(index=message.index, ranks=said, communicators=known, reply_to=message.reply_to)
    if isinstance(message, _LongFacts):
        alike = _elements(_alike_decoder, message.alike)
        return Facts(index=message.index, alike=alike, joined=message.joined, twice=message.twice)
    if isinstance(message, _LongParameters):
        ranks = _elements(_parameters_decoder, message.ranks)
        return Parameters(index=message.index, key=message.key, ranks=ranks, reply_to=message.reply_to)
    return message


def _elements(decoder: "msgspec.json.Decoder[T]", raws: tuple[msgspec.Raw, ...]) -> tuple[T, ...]:
    _count(raws)
    return tuple([_decode(decoder, bytes(raw), "an agent") for raw in raws])


def _view(raw: bytes, world_size: int) -> RankView:
    view = _decode(_view_decoder, raw, "an agent")
    outside = members.runs_outside(view, world_size)
    if outside:
        first, step, count = outside[0]
        raise WireError(
            f"a view of rank {view.rank} in a group whose members (from {first}, every {step}, {count} of them"
            f"{', ...' if len(outside) > 1 else ''}) do not fit into ranks 0..{world_size - 1} of its job"
        )
    return view


def _count(raws: tuple[msgspec.Raw, ...]) -> None:
    if len(raws) > config.ELEMENTS_MAX:
        raise WireError(f"a list of {len(raws)} in a long message; the limit is {config.ELEMENTS_MAX}")


def kind_of(head: bytes) -> str:
    """Return the kind that the first bytes of a message of JSON tell, "" if they tell none: `encode` puts it first."""
    found = _KIND.match(head)
    return found[1].decode() if found else ""


def bytes_max(kind: str) -> int:
    """Return how long a message of a kind may be; one of which the kind cannot be told is a short one."""
    return config.KIND_BYTES_MAX.get(kind, config.KIND_BYTES_MAX["gone"])


def parts(message: AgentMessage) -> list[AgentMessage]:
    """Return the two halves of a message that is too long, none if it cannot be parted."""
    if isinstance(message, Views) and len(message.ranks) > 1:
        middle = len(message.ranks) // 2
        return [msgspec.structs.replace(message, ranks=part) for part in _halves(message.ranks, middle)]
    if isinstance(message, Stacks) and len(message.dumps) > 1:
        middle = len(message.dumps) // 2
        first, second = _halves(message.dumps, middle)
        return [
            msgspec.structs.replace(message, dumps=first, more=True),
            msgspec.structs.replace(message, dumps=second),
        ]
    return []


def _halves(items: tuple[T, ...], middle: int) -> tuple[tuple[T, ...], tuple[T, ...]]:
    return items[:middle], items[middle:]


def decode_from_server(data: bytes | str) -> ServerMessage:
    """Parse what a server sent. Raises `WireError` with a sentence on anything else."""
    return _decode(_server_decoder, data, "the server")


def _decode(decoder: "msgspec.json.Decoder[T]", data: bytes | str, sender: str) -> T:
    if len(data) > config.MESSAGE_BYTES_MAX:
        raise WireError(f"a message of {len(data)} bytes from {sender}; the limit is {config.MESSAGE_BYTES_MAX}")
    try:
        return decoder.decode(data)
    except UNDECODABLE as error:
        raise WireError(f"{sender} sent what is no message of protocol {config.PROTOCOL}: {error}") from error


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
