"""What each tool says of a job, read from what it prints."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")
_CULPRIT = re.compile(r"Culprit rank (\d+)")
_FRAME = re.compile(r" at (\S+):(\d+)$|\((\S+?):(\d+)\)$", re.MULTILINE)
_TRACEBACK = re.compile(r"^(\w+(?:Error|Exception)\b.*)", re.MULTILINE)
_CALL = (
    r"Rank (\d+) is running collective: "
    r"CollectiveFingerPrint\(SequenceNumber=(\d+(?:, )?OpType=\w+(?:, TensorShape=\[[^]]*\])?)"
)
_MISMATCH = re.compile(rf"Detected mismatch between collectives on ranks\. {_CALL}.*? but {_CALL}")
_LATE = re.compile(r"Ranks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier")

Place = tuple[str, int]  # file name, line


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Which ranks and lines a tool names. Nothing named: it says nothing of who is at fault."""

    ranks: frozenset[int] = frozenset()
    places: frozenset[Place] = frozenset()
    failed: str = ""  # why the tool said nothing at all: it ended with an error


def of_flight_recorder(printed: str, own: Sequence[str]) -> Said:
    """Read what torchfrtrace prints: the first finding counts, as its authors say that others may follow from it."""
    found = [match for match in (_MISSING.search(printed), _CULPRIT.search(printed)) if match is not None]
    if not found:
        raised = _TRACEBACK.findall(printed)
        return Said(failed=raised[-1][:120] if raised else "")
    first = min(found, key=lambda match: match.start())
    block = printed[first.start() :].partition("internal record id")[0]
    missing = _MISSING.search(block)
    ranks = missing[1].split(",") if missing is not None else _CULPRIT.findall(block)
    return Said(ranks=frozenset(map(int, ranks)), places=_places(block, own))


def of_detail(printed: str) -> Said:
    """Read what TORCH_DISTRIBUTED_DEBUG=DETAIL raises in the ranks; it names no line.

    Of a mismatch each rank prints its own call and that of another one: whose call the fewest make is named.
    """
    calls = {
        int(rank): call
        for one, its, other, theirs in _MISMATCH.findall(printed)
        for rank, call in ((one, its), (other, theirs))
    }
    late = _LATE.search(printed)
    if calls:
        return Said(ranks=_fewest(calls))
    if late is not None:
        return Said(ranks=frozenset(map(int, late[1].split(","))))
    return Said(failed="SIGSEGV" if "SIGSEGV" in printed or "exitcode  : -11" in printed else "")


def of_stacks(stacks: Mapping[int, str], own: Sequence[str]) -> Said:
    """Apply the rule of thumb to py-spy's stacks of all ranks: who stands where the fewest stand is at fault.

    Where a rank stands is the innermost line of the user's files on its main thread.
    """
    stands: dict[int, Place] = {}
    for rank, text in stacks.items():
        main = re.split(r"^Thread ", text, flags=re.MULTILINE)
        threads = [thread for thread in main[1:] if '"MainThread"' in thread.partition("\n")[0]]
        places = [
            (Path(match[3]).name, int(match[4]))
            for thread in threads
            for match in _FRAME.finditer(thread)
            if match[3] is not None and Path(match[3]).name in own
        ]
        if places:
            stands[rank] = places[0]
    ranks = _fewest(stands)
    return Said(ranks=ranks, places=frozenset(stands[rank] for rank in ranks))


def _fewest(what: Mapping[int, object]) -> frozenset[int]:
    """Return the ranks that do what the fewest do; of equally many, all. None if all do the same."""
    counts = Counter(what.values())
    if len(counts) < 2:
        return frozenset()
    return frozenset(rank for rank, each in what.items() if counts[each] == min(counts.values()))


def _places(block: str, own: Sequence[str]) -> frozenset[Place]:
    """Return the innermost line of the user's files."""
    found = ((match[1], match[2]) for match in _FRAME.finditer(block) if match[1] is not None)
    own_places = ((Path(file).name, int(line)) for file, line in found if Path(file).name in own)
    return frozenset(itertools.islice(own_places, 1))
