"""Finds the rank whose smallest change would have ended a hang, by replaying recorded calls with edits.

A job that hangs is judged again and again, and its calls stay the same: they are searched once.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache

from ncclwatch_server.judge.theory.repair.findings import Finding, find
from ncclwatch_server.judge.theory.repair.tapes import Tapes, read
from ncclwatch_server.judge.theory.waits.rank_standing import RankStanding

CALLS_MAX = 128_000  # recorded calls of all ranks: more than a server asks for (limits.INSPECT_MAX views)
KEPT = 8  # jobs


class SmallestRepair:
    """The smallest repair of one job."""

    def __init__(self, found: Mapping[int, RankStanding]) -> None:
        self._found = found

    @cached_property
    def finding(self) -> Finding:
        """What was found; empty where there are more calls than can be replayed in time."""
        if sum(len(each.view.history) for each in self._found.values()) > CALLS_MAX:
            return Finding()
        return find_once(read(self._found))


class _Content:
    """Tapes, equal to others that hold the same."""

    __slots__ = ("_content", "_hash", "tapes")

    def __init__(self, tapes: Tapes) -> None:
        self.tapes = tapes
        self._content = (
            tapes.calls,
            tuple(sorted(tapes.groups.items())),
            tuple(
                (tape.rank, tape.calls, tape.seqs, tape.end, tape.stop, tape.through, tape.batches, tape.drawn,
                 tuple(sorted(tape.lost.items())))
                for tape in tapes.by_rank.values()
            ),
            tapes.unseen,
            tapes.on_device,
        )  # fmt: skip
        self._hash = hash(self._content)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self._hash == other._hash and self._content == other._content


def find_once(tapes: Tapes) -> Finding:
    """Return who is at fault, without a search where the same tapes were searched a moment ago."""
    return _found(_Content(tapes))


@lru_cache(maxsize=KEPT)
def _found(content: _Content) -> Finding:
    return find(content.tapes)
