"""Messages that are too long for a server."""

from ncclwatch.contract import wire
from ncclwatch.contract.model.rank import StackDump
from ncclwatch_agent.uplink.long_messages import in_parts


def test_stacks_are_parted_by_ranks() -> None:
    dumps = tuple(StackDump(rank=rank, failure=f"{rank}") for rank in (0, 1))
    parts = in_parts(wire.Stacks(index=0, dumps=dumps, reply_to=7))
    assert [(each.dumps, each.more) for each in parts if isinstance(each, wire.Stacks)] == [
        (dumps[:1], True),
        (dumps[1:], False),
    ]


def test_stacks_of_one_rank_cannot_be_parted() -> None:
    assert in_parts(wire.Stacks(index=0, dumps=(StackDump(rank=0, failure="0"),))) == []
