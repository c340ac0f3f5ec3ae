"""The answers of a server, as far as this command line reads them. Fields it does not know are passed over.

The shapes are the server's own (`ncclwatch_server.incidents.report`, `http.job_views`, `http.stack_routes`); it may be
a newer one, so that each field but those that every version has sent has a default.
"""

from dataclasses import dataclass

from ncclwatch.contract.model.verdict import Culprit, Divergence, Evidence, MergedStack, Repair


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What an ncclwatch server says of itself."""

    service: str
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request was not answered."""

    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """That there is a stack is all that matters here."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The part of an incident that decides what to do."""

    id: str
    job: str
    state: str
    cause: str
    certainty: str
    severity: str
    summary: str
    opened_at: str = ""
    lateness: str = ""
    one_of: bool = False  # nothing decides between its culprits, so far
    predicted: bool = False  # it warns of a hang that has not come
    culprits: tuple[Culprit, ...] = ()
    stacks: tuple[Stack, ...] = ()
    saved: bool = False
    advice: str = ""
    world_size: int = 0
    came_back_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One agent and its ranks."""

    host: str
    ranks: tuple[int, ...] = ()
    connected: bool = True
    quiet_s: float = 0.0
    version: str = ""
    clock_ahead_s: float | None = None  # of the server's; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why an agent, or a job of it, was refused."""

    where: str  # its host, or an address
    reason: str
    job: str = ""
    times: int = 1
    ago_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The part of a job that a status line shows."""

    id: str
    state: str
    world_size: int
    name: str = ""  # as its ranks report it: the id may be another one
    ranks_seen: int = 0
    ranks_ended: int = 0
    steps: int = 0
    attempt: int = 0
    waiting: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    open_incidents: tuple[str, ...] = ()
    title: str = ""  # what people call it, where its id is only an address
    outcome: str | None = None  # of a job that is over
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What became of an incident, and what it has cost."""

    recovered_after_s: float | None = None
    came_back_as: str = ""
    came_back_from: str = ""
    world_size: int = 0
    gpus: int = 0
    lost_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Aftermath):
    """An incident as a list shows it."""

    id: str
    job: str
    state: str
    cause: str
    certainty: str
    severity: str
    summary: str
    opened_at: str
    closed_at: str | None = None
    culprits: tuple[Culprit, ...] = ()
    one_of: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Aftermath):
    """An incident with all that is known of it."""

    id: str
    job: str
    state: str
    cause: str
    certainty: str
    severity: str
    summary: str
    explanation: str = ""
    advice: str = ""
    culprits: tuple[Culprit, ...] = ()
    one_of: bool = False
    predicted: bool = False
    disputed: bool = False
    victims: tuple[int, ...] = ()
    group: str = ""
    seq: int = 0
    op: str = ""
    group_title: str = ""
    first_divergence: Divergence | None = None
    repairs: tuple[Repair, ...] = ()
    onset_to_open_s: float = 0.0
    explains: tuple[int, int] = (0, 0)
    evidence: tuple[Evidence, ...] = ()
    stacks: tuple[MergedStack, ...] = ()
    opened_at: str = ""
    closed_at: str | None = None
    where: str = ""
    stack_tree: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTotals:
    """What several hangs have cost."""

    hangs: int
    jobs: int
    open: int = 0
    went_on: int = 0
    recovered: int = 0
    came_back: int = 0
    ended: int = 0
    lost_s: float = 0.0
    rank_s: float = 0.0
    gpu_s: float = 0.0
    saved_s: float = 0.0
    timeout_unknown: int = 0
    end_unknown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseLosses:
    """What the hangs of one cause have cost."""

    cause: str
    losses: LossTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport:
    """What the hangs of a period have cost."""

    since: str
    until: str
    total: LossTotals
    causes: tuple[CauseLosses, ...] = ()
    without: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRanks:
    """A node and which of the asked ranks it has."""

    host: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Ranks of which there is no stack, and why."""

    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Ranks that stand together."""

    ranks: tuple[int, ...]
    words: str
    odd: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStacks:
    """Where ranks of a job stand, as their nodes have just said."""

    job: str
    world_size: int
    asked: tuple[int, ...]
    chosen: str = ""
    took_s: float = 0.0
    hosts: tuple[HostRanks, ...] = ()
    places: tuple[Standing, ...] = ()
    stacks: tuple[MergedStack, ...] = ()
    left_out: int = 0
    tree: tuple[str, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    recorded: tuple[Standing, ...] = ()
    notes: tuple[str, ...] = ()
