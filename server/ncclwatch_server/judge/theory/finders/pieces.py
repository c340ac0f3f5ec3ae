"""Parts the waits of a job into independent pieces: no operation that anybody waits in has members in two of them.

What happens in one piece says nothing about another one. A job of many small groups has many.
"""

from collections.abc import Iterable

from ncclwatch_server.judge.theory.waits.wait_graph import WaitGraph


class Pieces:
    """Which ranks are in one piece. Who is in no operation that anybody waits in is alone."""

    def __init__(self, graph: WaitGraph) -> None:
        self._leader: dict[int, int] = {}  # on the way to the one that stands for all of a piece
        for members in {block.operation.members for blocks in graph.blocks.values() for block in blocks}:
            for member in members:
                self._leader[self._of(member)] = self._of(members[0])

    def parted(self, ranks: Iterable[int]) -> list[tuple[int, ...]]:
        """Return these ranks by piece, as they came."""
        parts: dict[int, list[int]] = {}
        for rank in ranks:
            parts.setdefault(self._of(rank), []).append(rank)
        return [tuple(part) for part in parts.values()]

    def _of(self, rank: int) -> int:
        """Return who stands for the piece of a rank, and shorten the way for the next one who asks."""
        while (above := self._leader.get(rank, rank)) != rank:
            self._leader[rank] = rank = self._leader.get(above, above)
        return rank
