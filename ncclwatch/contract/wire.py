"""How agents and the server talk: one WebSocket per agent and server, JSON for words, bytes for digests.

Agent to server: `Hello` first, then an `Announce` for each job on the node, a binary digest per job and second, and
`Views`, `Stacks`, `Testimonies`, `Loops`, `Facts`, `Parameters`, `Probed` and `Gone` when there is something to say.
Server to agent: `Welcome` or `Refused`, then `Command`s and `JobRefused`. Commands are a closed list.
A server that an agent started for one job has another node stand by (`Standby`, `Successor`, `Predecessor`).

The layout of a digest is in `digests`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

import msgspec

from ncclwatch.contract import config, foreign_json
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.job import Contact
from ncclwatch.contract.model.preflight import RankFacts, trimmed
from ncclwatch.contract.model.rank import ChildStack, RankView, StackDump, StackFrame
from ncclwatch.contract.model.testimony import Communicator, Testimony
from ncclwatch.contract.ring import members
from ncclwatch.contract.undecodable import UNDECODABLE

AGENT_PATH = "/ws/agent"  # route of the WebSocket


class CommandKind(str, Enum):
    """All that a server may ask of an agent."""

    INSPECT = "inspect"  # answer with Views of these ranks
    STACKS = "stacks"  # answer with Stacks of these ranks
    WITNESS = "witness"  # answer with the Testimonies of these ranks
    PARAMETERS = "parameters"  # answer with what these ranks have wrapped; `text`: the kind and the ranks it is for
    PRINT = "print"  # put `text` on the terminal of the job
    HANGS = "hangs"  # `text`: the hangs of the job, see `on_hang.hangs`; only to an agent that acts on them
    STAND_BY = "stand_by"  # answer with the Standby that takes over when this server is lost
    PROBE = "probe"  # answer with Probed; `text`: the addresses of a node, separated by spaces, "; " before the next


class Hello(msgspec.Struct, tag="hello", frozen=True, kw_only=True):
    """First message of an agent."""

    protocol: int
    agent: str  # random, one per agent process
    host: str
    version: str
    wall_s: float = 0.0  # seconds since 1970 on this host when it was sent; 0: it does not say. Told, never judged by
    machine: str = ""  # see `boot.machine`; "": it does not say


class Announce(msgspec.Struct, tag="announce", frozen=True, kw_only=True):
    """A job on this node, and the number its digests carry on this connection."""

    index: int
    job: str
    instance: str  # tells two launches with one name apart: launcher's address, run id
    attempt: int
    world_size: int
    ranks: tuple[int, ...]  # the ranks on this node seen so far
    terminal: bool  # whether a verdict should be printed on the job's terminal
    named: bool = True  # False: its name is only an address, where other jobs meet at other times
    title: str = ""  # what people call it where nobody has named it: its batch job, or its script
    command: str = ""  # the script and its arguments, without secrets
    user: str = ""  # whose processes its ranks are, by their environment
    labels: str = ""  # that the user gave it: "team=vision,run=42"
    run: int = 0  # of one launch that is started again by hand, a later run has a higher number on each agent
    lives: bool = True  # some process of it runs
    elsewhere: bool = False  # its launcher has started ranks on other nodes too
    acts: bool = False  # its owner wants the agent to act on hangs
    hooks: dict[str, bool] = {}  # incidents whose hook this agent asks to run or has run; true: it has ended
    addresses: tuple[str, ...] = ()  # of this node; (): it does not say, and knows no PROBE


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
        views = tuple([_view(_piece(raw, config.VIEW_BYTES_MAX), world_size) for raw in self.ranks])
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


class Probed(msgspec.Struct, tag="probed", frozen=True, kw_only=True):
    """The answer to PROBE."""

    index: int
    answering: tuple[int, ...]  # which of the nodes asked about, from 0. Of others, and of those that no process of
    # the job here has a connection to, nothing is known
    reply_to: int = 0


class KnownNode(msgspec.Struct, array_like=True, frozen=True):
    """A node of a job, as the job's server knows it."""

    agent: str  # as its hello says
    host: str
    machine: str
    ranks: tuple[int, ...]


class Standby(msgspec.Struct, tag="standby", frozen=True, kw_only=True):
    """The answer to STAND_BY: a server waits on this node."""

    index: int
    offer: str  # how agents reach it: an `Invitation`, as JSON
    reply_to: int = 0


class Predecessor(msgspec.Struct, tag="predecessor", frozen=True, kw_only=True):
    """What the server before this one knew of a job's nodes, as far as its standby was told."""

    index: int
    nodes: tuple[KnownNode, ...]
    host: str  # where that server ran
    silent_s: float  # since it was heard last
    contact: Contact  # what is seen of that host since


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


class Successor(msgspec.Struct, tag="successor", frozen=True, kw_only=True):
    """Which server to go to when this one is lost."""

    index: int
    host: str  # where it is
    offer: str  # as in Standby
    instead_of: str  # where this one is
    nodes: tuple[KnownNode, ...] = ()  # for that host alone: it tells them the server that takes over


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


class _LongLoops(msgspec.Struct, tag="loops", frozen=True, kw_only=True):
    index: int
    ranks: tuple[msgspec.Raw, ...]


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


ReadNews = Stacks | Testimonies | Loops | Facts | Parameters | Probed | Gone
JobNews = Views | ReadNews
StandbyNews = Standby | Predecessor
AgentMessage = Hello | Announce | JobNews | StandbyNews
UnreadMessage = Hello | Announce | UnreadViews | ReadNews | StandbyNews
_Parameter = tuple[int, tuple[str, ...]]
_Thread = tuple[str, tuple[StackFrame, ...]]
_LongNews = _LongStacks | _LongTestimonies | _LongFacts | _LongParameters | _LongLoops
_Long = Hello | Announce | UnreadViews | _LongNews | StandbyNews | Probed | Gone
ServerMessage = Welcome | Refused | JobRefused | Successor | Command

T = TypeVar("T")
_PART_BYTES = 40  # in memory of a part of a text of JSON, besides its letters: measured, 9 for long ones, 70 for short

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
_loop_decoder: msgspec.json.Decoder[Loop] = msgspec.json.Decoder(Loop)
_alike_decoder: msgspec.json.Decoder[Alike] = msgspec.json.Decoder(Alike)
_parameters_decoder: msgspec.json.Decoder[_Parameter] = msgspec.json.Decoder(_Parameter)
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
    return msgspec.structs.replace(views, ranks=members.unpacked(replace(view, weight=0) for view in views.ranks))


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
        _count(message.dumps)
        dumps = tuple([_decode(_dump_decoder, bytes(raw), "an agent").read() for raw in message.dumps])
        return Stacks(index=message.index, dumps=dumps, reply_to=message.reply_to, more=message.more)
    if isinstance(message, _LongTestimonies):
        said = _elements(_testimony_decoder, message.ranks)
        known = _elements(_communicator_decoder, message.communicators)
        return Testimonies(index=message.index, ranks=said, communicators=known, reply_to=message.reply_to)
    if isinstance(message, _LongLoops):
        return Loops(index=message.index, ranks=_elements(_loop_decoder, message.ranks))
    if isinstance(message, _LongFacts):
        found = _elements(_alike_decoder, message.alike)
        alike = tuple([Alike(ranks=each.ranks, facts=trimmed(each.facts)) for each in found])
        return Facts(index=message.index, alike=alike, joined=message.joined, twice=message.twice)
    if isinstance(message, _LongParameters):
        ranks = _elements(_parameters_decoder, message.ranks)
        return Parameters(index=message.index, key=message.key, ranks=ranks, reply_to=message.reply_to)
    return message


def _elements(decoder: "msgspec.json.Decoder[T]", raws: tuple[msgspec.Raw, ...]) -> tuple[T, ...]:
    _count(raws)
    return tuple([_decode(decoder, _piece(raw), "an agent") for raw in raws])


def _piece(raw: msgspec.Raw, bytes_max: int = config.ELEMENT_BYTES_MAX) -> bytes:
    """Return one element of a long message, which is decoded in one piece. Raises `WireError` if that takes long."""
    piece = bytes(raw)
    if len(piece) > bytes_max:
        raise WireError(f"an element of {len(piece)} bytes in a long message; the limit is {bytes_max}")
    return piece


def weight_of(text: bytes) -> int:
    """Return about how many bytes of memory a text of JSON takes when it is decoded: what is small takes the most."""
    return len(text) + text.count(b",") * _PART_BYTES


def _check_lists(view: RankView) -> None:
    """Raise `WireError` if a view tells more than a ring can hold: the judge would look through all of it."""
    for what, found, most in (
        ("operations", view.history, config.HISTORY_MAX),
        ("groups", view.groups, config.GROUPS_MAX),
        ("threads", view.threads, config.THREADS_MAX),
        ("peers", view.peers, config.PEERS_MAX),
        ("loaders", view.loaders, config.LOADERS_MAX),
        ("call sites", view.sites, config.SITES_MAX),
        ("routes", view.routes, config.ELEMENTS_MAX),
        ("lines of source", view.sources, config.ELEMENTS_MAX),
        ("saves", view.saves, config.THREADS_MAX),
        ("modules", view.modules, config.ELEMENTS_MAX),
        ("modes of modules", view.modes, config.ELEMENTS_MAX),
    ):
        if len(found) > most:
            raise WireError(f"a view of rank {view.rank} with {len(found)} {what}; the limit is {most}")


def _view(raw: bytes, world_size: int) -> RankView:
    view = _decode(_view_decoder, raw, "an agent")
    object.__setattr__(view, "weight", weight_of(raw))  # nobody else has it yet, and a copy of it takes as long again
    _check_lists(view)
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
