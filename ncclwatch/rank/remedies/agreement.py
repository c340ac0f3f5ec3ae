"""Lets ranks agree, without stopping, on how many batches all of them have.

By one all_reduce of four numbers at a time, in a gloo group of its own: it runs in gloo's threads while training
goes on, and no collective of the user can come between two of them.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ncclwatch.contract.config import EVEN_BATCHES_GROUP
from ncclwatch.contract.errors import NcclwatchError

_NO_RANK = 1 << 40  # above every rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What all ranks together said."""

    count: int  # the least that any rank has
    failed: int | None = None  # the lowest rank whose loader raised


class Vote:
    """One rank's part of one agreement, under way."""

    def __init__(self, channel: "Channel", count: int, failed: bool) -> None:
        self._channel = channel
        self._said = (count, failed)
        self._cast()

    def _cast(self) -> None:
        count, failed = self._said
        number = self._channel.number
        # Device and gradient mode may be the user's; host memory is what gloo takes.
        self._numbers = torch.tensor(
            [number, -number, count, dist.get_rank() if failed else _NO_RANK], dtype=torch.int64, device="cpu"
        )
        self._work = self._channel.all_reduce(self._numbers)

    def result(self) -> Tally:
        """Wait for what the others said, which has usually come by then."""
        number = self._channel.number
        while True:
            if self._work is not None:
                self._work.wait()
            first, last, count, failed = self._numbers.tolist()
            if -last > number:  # a rank has left this loop early and begun the next one: this one is over
                return Tally(count=0)
            if first == number:
                return Tally(count=count, failed=failed if failed < _NO_RANK else None)
            self._cast()  # that was for a rank that was still in the loop before, which has now heard of its end


class Channel:
    """A group in which one loop at a time agrees."""

    def __init__(self, world: dist.ProcessGroup, ranks: list[int]) -> None:
        self._world = weakref.ref(world)
        self._group = weakref.ref(
            dist.new_group(ranks, backend="gloo", use_local_synchronization=True, group_desc=EVEN_BATCHES_GROUP)
        )
        self.number = 0  # of the loop, counted alike on all ranks
        self.busy = False

    def all_reduce(self, numbers: torch.Tensor) -> dist.Work | None:
        """Take the minimum over the ranks, in place and in the background."""
        group = self._group()
        if group is None or self._world() is not dist.group.WORLD:
            raise destroyed("went on")
        work: dist.Work | None = dist.all_reduce(numbers, dist.ReduceOp.MIN, group=group, async_op=True)
        return work

    def cast(self, count: int, failed: bool) -> Vote:
        """Tell the others how many batches this rank has, and whether its loader raised."""
        return Vote(self, count, failed)


class Channels:
    """The channels of this process: one for each loop that runs inside another one."""

    def __init__(self) -> None:
        self._world: weakref.ref[dist.ProcessGroup] | None = None
        self._channels: dict[tuple[int, ...], list[Channel]] = {}

    @property
    def destroyed(self) -> bool:
        """Whether the group that loops of this process agreed in before is no more, and no other has come."""
        return self._world is not None and dist.group.WORLD is None

    @contextmanager
    def borrow(self, group: dist.ProcessGroup | None) -> Iterator[Channel]:
        """Give a channel among the ranks of a group to one loop."""
        world = dist.group.WORLD
        if world is None:
            raise destroyed("began")
        if self._world is None or self._world() is not world:
            self._world, self._channels = weakref.ref(world), {}
        ranks = dist.get_process_group_ranks(group or world)
        known = self._channels.setdefault(tuple(ranks), [])
        channel = next((each for each in known if not each.busy), None)
        if channel is None:
            channel = Channel(world, ranks)
            known.append(channel)
        channel.busy = True
        channel.number += 1
        try:
            yield channel
        finally:
            channel.busy = False


def destroyed(what: str) -> NcclwatchError:
    """Return the error of a loop that has lost its process group."""
    return NcclwatchError(
        f"a loop over even_batches {what} after destroy_process_group: its ranks cannot agree any more. Call "
        "destroy_process_group once, after the last loop and the last collective of every rank; a single process "
        "iterates over the loader itself."
    )
