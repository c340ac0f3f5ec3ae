"""Reads what is true about each program of the zoo, whatever ncclwatch says about it.

Beside every ``programs/NAME.py`` lies ``NAME.toml``. A call site is written there as a
function and a piece of the line, so that editing a program does not make its truth stale.
"""

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec

PROGRAMS = Path(__file__).parent / "programs"
CERTAINTIES = {"PROVEN", "STALLED", "LATE"}


class Expect(enum.Enum):
    """How a program ends when nobody watches it."""

    HANG = "hang"
    CRASH = "crash"
    SLOW = "slow"  # it ends well, and one rank makes all others wait: worth a warning, never an alarm
    HEALTHY = "healthy"

    @property
    def alarms(self) -> bool:
        """Whether a critical verdict is what a user needs."""
        return self in (Expect.HANG, Expect.CRASH)


class Backend(enum.Enum):
    """What a program's collectives run on."""

    GLOO = "gloo"
    STREAM = "stream"  # on the CPU with the semantics of NCCL, see stream/


class TruthError(Exception):
    """A toml of the zoo does not fit its program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A line of code: the only one in ``function`` (or in the file) that contains ``code``."""

    code: str
    function: str = ""  # "" = the whole file; methods may be written "Class.method"
    file: str = ""  # "" = the program itself; otherwise a sibling of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A place in the source that a call site may name."""

    file: Path
    number: int

    def __str__(self) -> str:
        return f"{self.file.name}:{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Ranks that sit in the same place while the job hangs."""

    ranks: tuple[int, ...]
    op: str = ""  # torch's name; "" = outside of every operation; "a|b" = either
    call_site: tuple[Marker, ...] = ()  # best first; empty = not scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A second fault, which has nothing to do with the first one."""

    cause: tuple[str, ...]  # accepted words, best first
    culprits: tuple[int, ...]  # all of them, or some


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The facts of one program."""

    id: str
    title: str
    nproc: int
    expect: Expect
    confirmed: str  # what was seen without ncclwatch
    cause: tuple[str, ...] = ()  # accepted words, best first
    certainty: tuple[str, ...] = ()  # accepted words; empty = not scored
    culprits: tuple[int, ...] = ()
    culprits_any: bool = False  # any non-empty subset of the culprits is right
    advice_any: tuple[str, ...] = ()  # lower case; one of them must be in the advice
    explained_by: tuple[str, ...] = ()  # words of the program that the explanation has to name, all of them
    sides: tuple[Side, ...] = ()
    besides: tuple[Root, ...] = ()  # each is an incident of its own
    slow_kind: tuple[str, ...] = ()  # accepted words for what makes a rank slow, best first; empty = not scored
    foretold: bool = False  # the hang can be seen coming, and a warning has to say so before it begins
    timeout_s: float = 120.0
    unfit_for_stream: str = ""  # why the program cannot run on Backend.STREAM
    needs_torchrun: str = ""  # why its ranks and its server are started anew; others are forked and have a common one
    core: bool = False  # runs in `make test`: it depends neither on the load of the machine nor on who comes first
    known_wrong: str = ""  # why the verdict is wrong today; a test fails as soon as it is right
    program: Path = Path()
    arguments: tuple[str, ...] = ()  # of the program; a case that was drawn has some

    @property
    def name(self) -> str:
        """What this is called in tables; a drawn case has only its id."""
        return self.id if self.arguments else self.program.stem

    def lines_of(self, rank: int) -> tuple[Line, ...]:
        """Return the lines that may be named as the call site of the rank."""
        markers = (marker for side in self.sides if rank in side.ranks for marker in side.call_site)
        return tuple(resolve(marker, self.program) for marker in markers)


def load(path: Path) -> Truth:
    """Read one toml and check that it fits its program."""
    try:
        table = msgspec.toml.decode(path.read_bytes(), type=Truth, dec_hook=_to_path)
    except msgspec.DecodeError as error:
        raise TruthError(f"{path.name}: {error}") from error
    truth = replace(table, program=path.with_suffix(".py"))
    _validate(truth)
    return truth


def load_all(only: tuple[str, ...] = ()) -> tuple[Truth, ...]:
    """Read the truth of all programs, or of those whose id or name is in ``only``."""
    truths = tuple(load(path) for path in sorted(PROGRAMS.glob("*.toml")))
    unknown = set(only) - {name for truth in truths for name in (truth.id, truth.program.stem)}
    if unknown:
        known = ", ".join(truth.id for truth in truths)
        raise TruthError(f"no program called {', '.join(sorted(unknown))}; there are: {known}")
    return tuple(t for t in truths if not only or t.id in only or t.program.stem in only)


def resolve(marker: Marker, program: Path) -> Line:
    """Find the one line that a marker means."""
    file = program.parent / marker.file if marker.file else program
    source = file.read_text()
    lines = source.splitlines()
    begin, end = _extent(marker.function, source, file) if marker.function else (1, len(lines))
    found = [number for number in range(begin, end + 1) if marker.code in lines[number - 1]]
    if len(found) != 1:
        raise TruthError(
            f"{file.name}: {marker.code!r} is on {len(found)} lines of "
            f"{marker.function or 'the file'}; a marker must be on exactly one"
        )
    return Line(file=file, number=found[0])


def _extent(function: str, source: str, file: Path) -> tuple[int, int]:
    found = [node for name, node in _functions_of(source) if function in (name, node.name)]
    if len(found) != 1:
        raise TruthError(f"{file.name}: {len(found)} functions are called {function!r}, wanted one")
    return found[0].lineno, found[0].end_lineno or found[0].lineno


@cache  # markers are looked up one by one
def _functions_of(source: str) -> tuple[tuple[str, ast.FunctionDef], ...]:
    return tuple(_functions(ast.parse(source)))


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        name = f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix
        yield from _functions(node, name)


def _validate(truth: Truth) -> None:
    name = truth.program.stem
    if not truth.program.is_file():
        raise TruthError(f"{name}.toml has no program beside it")
    if truth.id != name.partition("_")[0]:
        raise TruthError(f"{name}.toml has the id {truth.id!r}")
    if not set(truth.culprits) <= set(range(truth.nproc)):
        raise TruthError(f"{name}.toml blames a rank that does not exist")
    facts = (truth.culprits, truth.cause, truth.advice_any)
    if any(facts) if truth.expect is Expect.HEALTHY else not all(facts):
        raise TruthError(f"{name}.toml: a fault has culprits, a cause and advice; a healthy job has none")
    if not set(truth.certainty) <= CERTAINTIES:
        raise TruthError(f"{name}.toml: a certainty is one of {', '.join(sorted(CERTAINTIES))}")
    if truth.known_wrong and not truth.known_wrong.endswith("."):
        raise TruthError(f"{name}.toml: known_wrong is a sentence")
    if truth.needs_torchrun and not truth.needs_torchrun.endswith("."):
        raise TruthError(f"{name}.toml: needs_torchrun is a sentence")
    for side in truth.sides:
        for marker in side.call_site:
            resolve(marker, truth.program)


def _to_path(kind: type, value: object) -> Path:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)
