"""What keeps ranks with unequal numbers of batches together: a loop that ends on all of them at once.

A rank cannot know how many batches the others have, but it can draw ahead and tell how many it has drawn. Ranks agree
on the least of it, chunk by chunk, while they train on the chunk before; the chunk that one of them cannot fill is
the last, and all end with as many batches of it as that one has. So the ranks do exactly as many batches as the
poorest of them has, whatever its loader can tell of its length.

torch's `Join` solves the same by shadowing the collectives of ranks that are done, which needs hooks in every module
and optimizer that communicates; here nobody is left to be shadowed, at the price of the batches that others have left.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import torch.distributed as dist

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank import attach
from ncclwatch.rank.data.loaders import Pass, bucket_of
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.remedies.agreement import Channels, Tally, destroyed

Batch = TypeVar("Batch")

EVERY = 8  # batches between two agreements, and so drawn ahead at most


class Vote(Protocol):
    """One agreement under way."""

    def result(self) -> Tally:
        """Wait for what the others said."""


Cast = Callable[[int, bool], Vote]  # batches at hand, whether the loader raised


class LoaderFailedError(NcclwatchError):
    """The loader of another rank raised, so that the loop ended on all ranks."""


_channels = Channels()


def even_batches(
    loader: Iterable[Batch],
    bucket: Callable[[Batch], Hashable] | None = None,
    group: dist.ProcessGroup | None = None,
    every: int = EVERY,
) -> Generator[Batch, None, None]:
    """Yield the batches of a loader, equally many on all ranks; see `ncclwatch.even_batches`."""
    if every < 1:
        raise ValueError(f"even_batches(every={every}): ranks agree every so many batches, at least every one")
    if not dist.is_available() or not dist.is_initialized():
        if dist.is_available() and _channels.destroyed:
            raise destroyed("began")
        yield from loader
        return
    if dist.get_world_size(group) == 1:
        yield from loader
        return
    with _channels.borrow(group) as channel:
        watched = _Watched(loader, bucket)
        try:
            yield from evenly(watched, channel.cast, every, watched.count)
            watched.end()
        finally:
            watched.close()


def evenly(
    batches: Iterator[Batch], cast: Cast, every: int, count: Callable[[Batch], None]
) -> Generator[Batch, None, None]:
    """Yield as many batches as all ranks have, in chunks of 1, 2, 4 up to `every` of them.

    The first batch need not wait for a whole chunk to be drawn. Every rank casts its votes at the same batches, so
    that loops inside of each other agree in one order on all ranks. At most `every` + 1 batches are held.
    """
    ahead: _Ahead[Batch] = _Ahead(batches)
    size = 1
    ahead.draw(size)
    vote = cast(ahead.held, ahead.error is not None)
    while True:
        tally = vote.result()
        chunk = ahead.take(tally.count)
        full = tally.count == size
        following = min(2 * size, every)
        for number in range(1, len(chunk) + 1):
            if full:
                ahead.draw(-(-following * number // size))
                if number == size:
                    vote = cast(ahead.held, ahead.error is not None)
            batch = chunk.popleft()
            count(batch)
            yield batch
            del batch  # not held while the next one is drawn
        if not full:
            break
        size = following
    if ahead.error is not None:
        raise ahead.error
    if tally.failed is not None:
        raise LoaderFailedError(
            f"the data loader of rank {tally.failed} raised an exception, which is shown there; the loop over "
            "even_batches has ended on all ranks at the same batch"
        )


class _Ahead(Generic[Batch]):
    """Batches that were drawn and not trained on yet."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._held: deque[Batch] = deque()
        self._over = False
        self.error: Exception | None = None  # that the loader raised, to be raised where the loop ends

    @property
    def held(self) -> int:
        """How many there are."""
        return len(self._held)

    def draw(self, wanted: int) -> None:
        """Draw until there are so many, or no more."""
        while len(self._held) < wanted and not self._over:
            try:
                self._held.append(next(self._batches))
            except StopIteration:
                self._over = True
            except Exception as error:  # the user's own; the others must hear of it before it is raised
                self._over, self.error = True, error

    def take(self, count: int) -> deque[Batch]:
        """Return the first of them and keep none."""
        taken, self._held = self._held, deque()
        while len(taken) > count:
            taken.pop()
        return taken


class _Watched(Iterator[Batch]):
    """A loader's iterator whose batches are recorded where they are trained on, and not where they are drawn."""

    def __init__(self, loader: Iterable[Batch], bucket: Callable[[Batch], Hashable] | None) -> None:
        self._bucket = bucket or bucket_of
        self._recorder = attach.current()
        self._pass: Pass | None = None
        recorder = self._recorder
        if recorder is not None:
            self._pass = guarded.ask(recorder, lambda: recorder.loaders.begin(loader, 2, even=True))
            recorder.loaders.drive(1)
        try:
            self._iterator: Iterator[Batch] | None = iter(loader)
        finally:
            if recorder is not None:
                recorder.loaders.drive(-1)

    def __next__(self) -> Batch:
        recorder = self._recorder
        if self._iterator is None:
            raise StopIteration
        if recorder is None:
            return next(self._iterator)
        outer = guarded.enter(recorder, WaitKind.DATA, 2)
        began_ns = time.monotonic_ns()
        recorder.loaders.drive(1)
        try:
            return next(self._iterator)
        finally:
            recorder.loaders.drive(-1)
            guarded.leave(recorder, outer)
            guarded.spend(recorder, Word.DATA_NS, began_ns)

    def count(self, batch: Batch) -> None:
        """Record that a batch is handed out."""
        recorder, this = self._recorder, self._pass
        if recorder is not None and this is not None and this.row >= 0:
            guarded.attempt(recorder, recorder.count_drawn, this, batch, self._bucket)

    def end(self) -> None:
        """Record that all ranks have ended the pass together."""
        recorder, this = self._recorder, self._pass
        if recorder is not None and this is not None:
            guarded.attempt(recorder, recorder.loaders.end, this)

    def close(self) -> None:
        """Let the loader's iterator go, with its worker processes if they are its own."""
        self._iterator = None
