"""Merges the stacks of many ranks by their common beginnings, to show which ranks stand where.

The method of STAT (Arnold et al., "Stack Trace Analysis for Large Scale Debugging", IPDPS 2007): equal stacks
are joined first, by a hash, so that each distinct stack enters the prefix tree once, with the set of its ranks.
A frame is its function and file; its line counts for the user's own code and for the innermost frame, where it
tells one call from another. Elsewhere it would only part ranks that do the same.

Like is compared with like: main threads with main threads, and a named thread with those of its name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ncclwatch.contract.model.rank import StackDump, StackFrame
from ncclwatch.contract.model.verdict import MergedStack
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch.contract.stacks.places import Place, is_own_thread, telling
from ncclwatch.contract.words.text import rank_list

CLASSES_MAX = 4096  # distinct stacks in one tree; what comes later is left out
ROW_MAX = 4  # frames in a row that are not the user's, shown in full
RANKS_WIDTH_MAX = 24  # columns
ODD_SHARE = 0.05  # of the ranks: so many, and no more, are odd ones out

_NUMBERS = re.compile(r"[-_ ]?\d+(?:[-_]\d+)*")
_HOME = re.compile(r"\A.*/(?:site-packages|dist-packages|lib/python3[^/]*)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackClass:
    """One distinct stack and the ranks that share it."""

    ranks: tuple[int, ...]  # sorted
    role: str  # of the thread: "MainThread", or a name without its numbers
    thread: str  # its whole name, on the lowest rank
    frames: tuple[StackFrame, ...]  # innermost first, of the lowest rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Frames that the same ranks share, up to where they part. Ranks may end here, and not in a branch."""

    ranks: tuple[int, ...]
    frames: tuple[StackFrame, ...]  # outermost first; a line that does not count is 0
    branches: tuple["Branch", ...]  # those of the fewest ranks first


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Ranks whose main threads stand in one place."""

    ranks: tuple[int, ...]
    place: Place
    odd: bool  # few, where most others are in one other place

    def __str__(self) -> str:
        return f"{rank_list(self.ranks)} {self.place.brief}"


class _Node:
    """A frame under construction; ranks are the bits of a number, so that joining is one operation."""

    __slots__ = ("below", "frame", "ranks")

    def __init__(self, frame: StackFrame) -> None:
        self.frame = frame
        self.ranks = 0
        self.below: dict[str, _Node] = {}


def classes(dumps: Iterable[StackDump]) -> tuple[StackClass, ...]:
    """Return the distinct stacks of all threads of these ranks, but for our own threads and wrappers."""
    exact: dict[tuple[str, tuple[StackFrame, ...]], list[int]] = {}  # most are equal as they are, which is cheap to see
    for dump in sorted(dumps, key=lambda dump: dump.rank):
        for thread, dumped in dump.threads:
            exact.setdefault((thread, dumped), []).append(dump.rank)
    found: dict[tuple[str, tuple[str, ...]], tuple[set[int], str, tuple[StackFrame, ...]]] = {}
    for (thread, dumped), ranks in exact.items():
        frames = telling(dumped)
        if not frames or is_own_thread(thread, dumped):
            continue
        key = (role_of(thread), frame_keys(frames))
        if key in found:
            found[key][0].update(ranks)
        elif len(found) < CLASSES_MAX:
            found[key] = (set(ranks), thread, frames)
    return tuple(
        StackClass(ranks=tuple(sorted(merged)), role=role, thread=thread, frames=frames)
        for (role, _), (merged, thread, frames) in found.items()
    )


def tree(distinct: Iterable[StackClass | MergedStack]) -> tuple[Branch, ...]:
    """Return the prefix tree of distinct stacks of one role, as branches from the outermost frames inwards."""
    root = _Node(StackFrame(function="", file="", line=0))
    for stack in distinct:
        bits = _bits(stack.ranks)
        node = root
        for key, frame in zip(reversed(frame_keys(stack.frames)), reversed(stack.frames), strict=True):
            below = node.below.get(key)
            if below is None:
                line = frame.line if key.endswith(f":{frame.line})") else 0
                below = node.below[key] = _Node(StackFrame(function=frame.function, file=frame.file, line=line))
            node = below
            node.ranks |= bits
    return _branches(root)


def tree_lines(branches: Iterable[Branch]) -> Iterator[str]:
    """Yield the tree as text: ranks on the left where they change, a frame a line, deeper where ranks part.

    Of many frames in a row that are not the user's, the first and the innermost two are shown.
    """
    grown = tuple(branches)
    yield from _lines(grown, min(RANKS_WIDTH_MAX, max((len(t) for t in _rank_texts(grown)), default=0)), 0)


def _lines(branches: Iterable[Branch], width: int, indent: int) -> Iterator[str]:
    for branch in branches:
        left = rank_list(branch.ranks)
        for text in _shortened(branch.frames):
            yield f"{left.ljust(width)}  {'  ' * indent}{text}"
            left = ""
        yield from _lines(branch.branches, width, indent + 1)


def _rank_texts(branches: Iterable[Branch]) -> Iterator[str]:
    for branch in branches:
        yield rank_list(branch.ranks)
        yield from _rank_texts(branch.branches)


def _shortened(frames: Sequence[StackFrame]) -> Iterator[str]:
    for users, run in groupby(frames, key=lambda frame: is_users_by_path(frame.file)):
        row = list(run)
        shown = row if users or len(row) <= ROW_MAX else row[:1] + row[-2:]
        for number, frame in enumerate(shown):
            if number == 1 and len(shown) < len(row):
                yield f"... {len(row) - len(shown)} frames"
            line = f":{frame.line}" if frame.line else ""
            yield f"{frame.function} ({short_path(frame.file)}{line})"


def gangs(places: Mapping[int, Place]) -> tuple[Gang, ...]:
    """Return who stands together, the odd ones and then the fewest first.

    Odd are the ranks of a place that at most one rank, or one in twenty, is in while more than half are in
    one other place. It says that they differ, and not that they are at fault: whoever runs ahead differs too.
    """
    together: dict[Place, list[int]] = {}
    for rank in sorted(places):
        together.setdefault(places[rank], []).append(rank)
    few = max(1, int(ODD_SHARE * len(places)))
    most = max((len(ranks) for ranks in together.values()), default=0)
    majority = most > len(places) / 2
    found = [
        Gang(ranks=tuple(ranks), place=place, odd=majority and len(ranks) <= few and len(ranks) < most)
        for place, ranks in together.items()
    ]
    return tuple(sorted(found, key=lambda gang: (not gang.odd, len(gang.ranks), gang.ranks)))


def gang_line(found: Iterable[Gang]) -> str:
    """Return all gangs in one line: "3 in validate train.py:88; 0-2,4-7 in backward train.py:55"."""
    return "; ".join(map(str, found))


def role_of(thread: str) -> str:
    """Return the name of a thread without its numbers, which differ from rank to rank."""
    return _NUMBERS.sub("", thread).strip() or "thread"


def frame_keys(frames: tuple[StackFrame, ...]) -> tuple[str, ...]:
    """Return the frames as they are compared and shown, innermost first."""
    return tuple(_key(frame, leaf=number == 0) for number, frame in enumerate(frames))


def _key(frame: StackFrame, *, leaf: bool) -> str:
    line = f":{frame.line}" if frame.line and (leaf or is_users_by_path(frame.file)) else ""
    return f"{frame.function} ({short_path(frame.file)}{line})"


def short_path(file: str) -> str:
    """Return a path as all nodes have it: below site-packages or the standard library, or its last two parts."""
    below = _HOME.sub("", file)
    return below if below != file else "/".join(file.rsplit("/", 2)[-2:])


def _branches(node: _Node) -> tuple[Branch, ...]:
    found = []
    for below in node.below.values():
        frames = [below.frame]
        while len(below.below) == 1:
            (deeper,) = below.below.values()
            if deeper.ranks != below.ranks:
                break
            frames.append(deeper.frame)
            below = deeper
        found.append(Branch(ranks=_ranks(below.ranks), frames=tuple(frames), branches=_branches(below)))
    return tuple(sorted(found, key=lambda branch: (len(branch.ranks), branch.ranks)))


def _bits(ranks: Iterable[int]) -> int:
    bits = 0
    for rank in ranks:
        bits |= 1 << rank
    return bits


def _ranks(bits: int) -> tuple[int, ...]:
    return tuple(rank for rank, bit in enumerate(reversed(f"{bits:b}")) if bit == "1")
