"""Holds a random SPMD program as data: statements with lines, and what each rank does of them, step after step.

All ranks run the same source. A call names an axis: the groups of an axis share no rank, and each rank calls with its
own. A rank that is in no group of the axis passes by, as under `if rank in members`.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ncclwatch.contract.model.rank import Op

Ranks = tuple[int, ...]
FILE = "/home/user/train.py"


class Kind(Enum):
    """What a statement, or a step of a rank, does."""

    COMPUTE = "compute"
    CALL = "call"
    KEY = "key"  # of the store: one member of each group sets it, the others wait for it
    READ = "read"  # a value from the device, once that has all it needs for it
    WAIT = "wait"  # for all works that the rank has issued asynchronously at another line
    MAKE = "make"  # groups, by new_group; all ranks make it, and its members wait for each other there
    LOCK = "lock"  # of a file on the node, round its body
    TAKE = "take"  # that lock: a step of a rank, as the next one
    GIVE = "give"
    LOOP = "loop"
    EVERY = "every"  # its body in each n-th pass of the loop around it
    DRAW = "draw"  # a batch, or the news that there is none left
    END = "end"
    PIPE = "pipe"  # micro-batches through the stages of a group, forward and backward


RANKS_PER_HOST = 8


class Axis(NamedTuple):
    """Process groups that were made by one statement."""

    line: int  # a line of the body: there they are made
    groups: tuple[Ranks, ...]


class Stmt(NamedTuple):
    """A statement of the source."""

    line: int
    kind: Kind
    axis: int = 0
    op: Op = Op.UNKNOWN
    root: int = -1  # position in the group
    numel: int = 0
    is_async: bool = False
    awaited: int = 0  # line of the asynchronous call that is waited for
    seconds: float = 0.0
    times: int = 0  # of a loop, or each n-th of it
    loader: bool = False  # the loop is over a DataLoader
    body: "tuple[Stmt, ...]" = ()


class Step(NamedTuple):
    """Something that one rank does."""

    line: int
    kind: Kind
    group: str = ""
    op: Op = Op.UNKNOWN
    root: int = -1  # global rank; of a send or a receive: the other side
    numel: int = 0
    is_async: bool = False
    awaited: int = 0  # as of a statement
    seconds: float = 0.0
    batch: int = 0  # drawn in this pass, of the newest loader; of a draw: the number of the batch, 0: none is left
    loader: int = 0  # line of the newest loader
    turn: int = 0  # how often the rank came by this line before
    how: str = ""  # of an end, or of how a rank stands


class Program(NamedTuple):
    """The source, and the world that runs it."""

    world: int
    axes: tuple[Axis, ...]  # the first is the default group of all ranks
    body: tuple[Stmt, ...]
    late: int = 0  # so many of the last axes are made in the body, by a statement of their own
    device: bool = False  # collectives run on a device, as with NCCL
    spins: bool = False  # a host that waits for its device
    eager: bool = True  # a send is through once its bytes are with the kernel, and need not be received

    @property
    def groups(self) -> Mapping[str, Ranks]:
        """The members of each group by the name that torch gives to it."""
        ranks = (group for axis in self.axes for group in axis.groups)
        return {str(number): members for number, members in enumerate(ranks)}

    @property
    def begun_with(self) -> int:
        """How many groups are there before the body."""
        return sum(len(axis.groups) for axis in self.axes[: len(self.axes) - self.late])

    def names_of(self, axis: int) -> tuple[str, ...]:
        """Return the names of the groups of an axis."""
        first = sum(len(each.groups) for each in self.axes[:axis])
        return tuple(str(first + number) for number in range(len(self.axes[axis].groups)))

    def own_groups(self, rank: int) -> tuple[str, ...]:
        """Return the group of each axis that a rank is in; "" where it is in none."""
        names = iter(self.groups)
        found = []
        for axis in self.axes:
            own = ""
            for members in axis.groups:
                name = next(names)
                own = name if rank in members else own
            found.append(own)
        return tuple(found)


class Deviation(NamedTuple):
    """In what one rank goes another way than the source says, where that is not told by single steps."""

    short: int = 0  # line of a loader that gives fewer batches
    by: int = 0  # so many
    flipped: int = 0  # line of a test that comes out the other way
    turn: int = 0  # at that turn


class _Unrolling:
    """One rank on its way through the source."""

    def __init__(self, program: Program, rank: int, deviation: Deviation) -> None:
        self.program, self.rank, self.deviation = program, rank, deviation
        self.names, self.groups = program.own_groups(rank), program.groups
        self.turns: dict[int, int] = {}
        self.loader = self.batch = 0

    def steps(self, body: Sequence[Stmt], turn: int) -> Iterator[Step]:
        for stmt in body:
            kind = stmt.kind
            if kind is Kind.LOOP:
                yield from self.loop(stmt)
            elif kind is Kind.EVERY:
                came = self.turns.get(stmt.line, 0)
                self.turns[stmt.line] = came + 1
                flipped = (self.deviation.flipped, self.deviation.turn) == (stmt.line, came)
                if (turn % stmt.times == stmt.times - 1) is not flipped:
                    yield from self.steps(stmt.body, turn)
            elif kind in (Kind.CALL, Kind.KEY):
                name = self.names[stmt.axis]
                if name:
                    yield self.step(stmt, name)
            elif kind is Kind.PIPE:
                yield from self.pipe(stmt)
            elif kind is Kind.MAKE:
                yield from (self.step(stmt, name) for name in self.program.names_of(stmt.axis))
            else:
                yield from self.work(stmt, turn)

    def work(self, stmt: Stmt, turn: int) -> Iterator[Step]:
        """Yield what needs no group: work, and work in a lock."""
        if stmt.kind is not Kind.LOCK:
            yield self.step(stmt, "")
            return
        yield self.step(stmt._replace(kind=Kind.TAKE), "")
        yield from self.steps(stmt.body, turn)
        yield self.step(stmt._replace(kind=Kind.GIVE), "")

    def loop(self, stmt: Stmt) -> Iterator[Step]:
        times = stmt.times
        if stmt.loader and self.deviation.short == stmt.line and self.turns.get(stmt.line, 0) <= stmt.times:
            times = max(times - self.deviation.by, 0)
        for turn in range(times):
            if stmt.loader:
                self.loader, self.batch = stmt.line, turn + 1
                yield self.step(stmt._replace(kind=Kind.DRAW), "")
            yield from self.steps(stmt.body, turn)
        if stmt.loader:
            yield self.step(stmt._replace(kind=Kind.DRAW), "")._replace(batch=0)

    def pipe(self, stmt: Stmt) -> Iterator[Step]:
        """Yield GPipe's schedule: all micro-batches forward, then all backward. Its lines follow that of the pipe."""
        name = self.names[stmt.axis]
        if not name:
            return
        stages = self.groups[name]
        at = stages.index(self.rank)
        before, after = stages[at - 1] if at else -1, stages[at + 1] if at + 1 < len(stages) else -1
        for line, source, target in ((stmt.line + 1, before, after), (stmt.line + 4, after, before)):
            for _ in range(stmt.times):
                if source >= 0:
                    yield self.step(stmt._replace(line=line, kind=Kind.CALL, op=Op.RECV), name)._replace(root=source)
                yield self.step(stmt._replace(line=line + 1, kind=Kind.COMPUTE), "")
                if target >= 0:
                    yield self.step(stmt._replace(line=line + 2, kind=Kind.CALL, op=Op.SEND), name)._replace(
                        root=target
                    )

    def step(self, stmt: Stmt, name: str) -> Step:
        turn = self.turns.get(stmt.line, 0)
        self.turns[stmt.line] = turn + 1
        root = self.groups[name][stmt.root] if name and stmt.root >= 0 else -1
        return Step(
            stmt.line, stmt.kind, name, stmt.op, root, stmt.numel, stmt.is_async, stmt.awaited, stmt.seconds,
            self.batch, self.loader, turn,
        )  # fmt: skip


def steps_of(program: Program, rank: int, deviation: Deviation = Deviation()) -> list[Step]:
    """Return what a rank does, from the first step to the last."""
    return list(_Unrolling(program, rank, deviation).steps(program.body, 0))


def lines_of(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yield all statements, those of loops and tests after them."""
    for stmt in body:
        yield stmt
        yield from lines_of(stmt.body)


def source_of(program: Program) -> str:
    """Return the program as text, for people."""
    on_device = ", on devices" if program.device else ""
    lines = [f"world {program.world}{on_device}{'' if program.eager else ', sends wait for their receivers'}"]
    names = iter(program.groups)
    for axis in program.axes:
        groups = ", ".join(f"{next(names)}={list(members)}" for members in axis.groups)
        lines.append(f"{axis.line:4} groups {groups}")

    def add(body: Sequence[Stmt], depth: int) -> None:
        for stmt in body:
            lines.append(f"{stmt.line:4} {'    ' * depth}{_words(stmt)}")
            add(stmt.body, depth + 1)

    add(program.body, 0)
    return "\n".join(lines)


def _words(stmt: Stmt) -> str:
    if stmt.kind is Kind.CALL:
        root = f", root {stmt.root}" if stmt.root >= 0 else ""
        return f"{stmt.op.value}(axis {stmt.axis}{root}, {stmt.numel}){' async' if stmt.is_async else ''}"
    if stmt.kind is Kind.WAIT:
        return f"wait for line {stmt.awaited}"
    if stmt.kind is Kind.MAKE:
        return f"new_group (axis {stmt.axis})"
    if stmt.kind is Kind.LOCK:
        return "with a file lock:"
    if stmt.kind is Kind.KEY:
        return f"key of the store (axis {stmt.axis}, set by {stmt.root})"
    if stmt.kind is Kind.LOOP:
        return f"for {stmt.times} {'batches' if stmt.loader else 'times'}:"
    if stmt.kind is Kind.EVERY:
        return f"each {stmt.times}. time:"
    if stmt.kind is Kind.PIPE:
        return f"pipe of {stmt.times} micro-batches (axis {stmt.axis})"
    return f"{stmt.kind.value} {stmt.seconds:.2f}" if stmt.kind is Kind.COMPUTE else stmt.kind.value
