"""Whatever the lengths and speeds of the loaders: all ranks get what the poorest has, and nobody hangs."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from ncclwatch.rank.remedies.agreement import Tally
from ncclwatch.rank.remedies.even_batches import LoaderFailedError, evenly

DEADLINE_S = 20.0


@dataclass
class Board:
    """Where ranks in threads agree: the n-th vote of each belongs to the n-th of all others."""

    ranks: int
    rounds: list[dict[int, tuple[int, bool]]] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    def cast(self, rank: int, number: int, said: tuple[int, bool]) -> None:
        with self.news:
            while len(self.rounds) <= number:
                self.rounds.append({})
            self.rounds[number][rank] = said
            self.news.notify_all()

    def result(self, number: int) -> Tally:
        with self.news:
            if not self.news.wait_for(lambda: len(self.rounds[number]) == self.ranks, DEADLINE_S):
                raise TimeoutError(f"vote {number}: only ranks {sorted(self.rounds[number])} came")
            said = self.rounds[number]
        failed = [rank for rank, (_, error) in said.items() if error]
        return Tally(count=min(count for count, _ in said.values()), failed=min(failed, default=None))


class Ballot:
    """One rank's votes."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.number = board, rank, 0

    def __call__(self, count: int, failed: bool) -> "Ballot.Vote":
        self.board.cast(self.rank, self.number, (count, failed))
        self.number += 1
        return Ballot.Vote(self.board, self.number - 1)

    @dataclass
    class Vote:
        board: Board
        number: int

        def result(self) -> Tally:
            return self.board.result(self.number)


@dataclass
class Loader:
    """Gives so many batches, now and then slowly; raises instead of the batch with number `fails_at`."""

    length: int
    fails_at: int = -1
    seed: int = 0
    drawn: int = 0
    given: int = 0
    held: int = 0  # drawn and not given, at most

    def __iter__(self) -> Iterator[int]:
        pauses = random.Random(self.seed)
        for number in range(self.length):
            if pauses.random() < 0.05:
                time.sleep(0.001)
            if number == self.fails_at:
                raise ValueError(f"batch {number} is broken")
            self.drawn += 1
            self.held = max(self.held, self.drawn - self.given)
            yield number

    def give(self, _: int) -> None:
        self.given += 1


def _rank(loader: Loader, board: Board, rank: int, every: int) -> tuple[list[int], str]:
    got: list[int] = []
    try:
        for batch in evenly(iter(loader), Ballot(board, rank), every, loader.give):
            got.append(batch)
    except (ValueError, LoaderFailedError) as error:
        return got, type(error).__name__
    return got, ""


def _run(loaders: list[Loader], every: int) -> list[tuple[list[int], str]]:
    board = Board(len(loaders))
    with ThreadPoolExecutor(len(loaders)) as threads:
        ranks = [threads.submit(_rank, loader, board, rank, every) for rank, loader in enumerate(loaders)]
        return [rank.result(DEADLINE_S) for rank in ranks]


LENGTHS = st.lists(st.integers(0, 70), min_size=2, max_size=5)


@settings(deadline=None, max_examples=80)
@given(lengths=LENGTHS, every=st.integers(1, 20), seed=st.integers(0, 1000))
def test_all_ranks_get_the_batches_of_the_poorest_in_order(lengths: list[int], every: int, seed: int):
    loaders = [Loader(length, seed=seed + rank) for rank, length in enumerate(lengths)]

    ranks = _run(loaders, every)

    assert ranks == [(list(range(min(lengths))), "")] * len(lengths)
    assert max(loader.held for loader in loaders) <= every + 1


@settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, every=st.integers(1, 20), data=st.data())
def test_a_loader_that_raises_ends_the_loop_of_all_at_one_batch(lengths: list[int], every: int, data: st.DataObject):
    rank = data.draw(st.integers(0, len(lengths) - 1))
    fails_at = data.draw(st.integers(0, 70))
    loaders = [Loader(length, fails_at if number == rank else -1) for number, length in enumerate(lengths)]
    least = min(lengths)

    ranks = _run(loaders, every)

    good = min(least, fails_at if fails_at < lengths[rank] else least)
    assert [got for got, _ in ranks] == [list(range(good))] * len(lengths)
    if fails_at < least:
        expected = ["ValueError" if number == rank else "LoaderFailedError" for number in range(len(lengths))]
        assert [error for _, error in ranks] == expected
