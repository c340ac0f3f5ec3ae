"""Two ranks show how the stream backend behaves, and what ncclwatch records of it; each prints what it saw as JSON.

Rank 1 issues everything a second late.
"""

import json
import os
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

import ncclwatch
from ncclwatch.contract.model.rank import Op
from ncclwatch.contract.ring.layout import Flag, PeerFlag
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.rows import GroupRow, PeerRow
from ncclwatch.rank import attach as life

LATE_S = 1.5


def group_rows() -> dict[str, GroupRow]:
    """Return the groups of this rank's own ring, once the pulse has looked."""
    time.sleep(0.7)
    recorder = life.current()
    assert recorder is not None
    with Ring(recorder.ring.path) as ring:
        return {row.name: row for row in ring.groups()}


def in_order() -> list[bool]:
    """Return what the ring says of the order of the first all_reduces: a plain one, two with async_op=True."""
    recorder = life.current()
    assert recorder is not None
    with Ring(recorder.ring.path) as ring:
        return [event.in_order for event in ring.events(1000) if event.op is Op.ALL_REDUCE][:3]


def late() -> None:
    """Let rank 0 be ahead."""
    if dist.get_rank() == 1:
        time.sleep(LATE_S)


def one_call() -> dict[str, object]:
    """Issue one all_reduce and read its result."""
    x = torch.full((4,), float(dist.get_rank() + 1))
    late()
    began = time.monotonic()
    dist.all_reduce(x)
    issued_s = time.monotonic() - began
    row = group_rows()["0"] if dist.get_rank() == 0 else None
    value = x[0].item()
    read_s = time.monotonic() - began
    after = group_rows()["0"]
    return {
        "issued_s": issued_s,
        "during": [row.enqueued, row.completed] if row else None,
        "asynchronous": bool(after.flags & Flag.ASYNC),
        "value": value,
        "read_s": read_s,
        "after": [after.enqueued, after.completed],
    }


def two_groups(waited: bool) -> float:
    """Return how long a collective of a free group takes behind one that rank 1 has not issued yet."""
    one, other = dist.new_group(), dist.new_group([dist.get_rank()], use_local_synchronization=True)
    x, y = torch.ones(1), torch.ones(1)
    late()
    began = time.monotonic()
    first = dist.all_reduce(x, group=one, async_op=True)
    if waited:
        first.wait()
    second = dist.all_reduce(y, group=other, async_op=True)
    while not second.is_completed():
        time.sleep(0.01)
    took_s = time.monotonic() - began
    first.wait()
    x.tolist()
    return took_s


def objects() -> list[object]:
    """Exchange objects and p2p in a batch, as NCCL's users do."""
    rank, gathered = dist.get_rank(), [None, None]
    dist.all_gather_object(gathered, {"rank": rank})
    received = torch.zeros(2)
    pairs = dist.new_group()  # of a group with sends and receives nobody tells how far it is
    sent = torch.full((2,), float(rank))
    ops = [dist.P2POp(dist.isend, sent, 1 - rank, pairs), dist.P2POp(dist.irecv, received, 1 - rank, pairs)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [gathered, received.tolist()]


def peer_row(wanted: Callable[[PeerRow], bool]) -> PeerRow:
    """Return the p2p counters of this rank's own ring as soon as the pulse has written what is wanted."""
    recorder = life.current()
    assert recorder is not None
    with Ring(recorder.ring.path) as ring:
        deadline = time.monotonic() + 60
        while not wanted(row := ring.peers()[-1]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return row


def messages() -> dict[str, list[object]]:
    """Exchange messages in a batch, alone, and beside a collective; then rank 0 receives what is not sent yet."""
    rank, pairs, x, y = dist.get_rank(), dist.new_group(), torch.ones(2), torch.zeros(2)
    other, store = 1 - rank, dist.distributed_c10d._get_default_store()
    send, recv = (partial(dist.P2POp, op, group=pairs, peer=other) for op in (dist.isend, dist.irecv))
    for work in dist.batch_isend_irecv([send(tensor=x), recv(tensor=y)]):
        work.wait()
    batched = peer_row(lambda row: row.flags > 0)
    if rank == 0:
        dist.send(x, other, group=pairs)
    else:
        dist.recv(y, other, group=pairs)
    alone = peer_row(lambda row: row.sends_completed + row.recvs_completed == 3)
    under_way = dist.isend(x, other, group=pairs) if rank == 0 else dist.irecv(y, other, group=pairs)
    assert under_way is not None
    dist.all_reduce(torch.ones(1))  # this one does not come after it
    under_way.wait()
    beside = peer_row(lambda row: row.sends_completed + row.recvs_completed == 4)
    if rank == 0:
        dist.recv(y, other, group=pairs)
        waits = peer_row(lambda row: bool(row.flags & PeerFlag.RECEIVING))
        store.set("semantics", "1")
    else:
        store.wait(["semantics"])
        dist.send(x, other, group=pairs)
        waits = None
    y.tolist()
    after = peer_row(lambda row: not row.flags & PeerFlag.RECEIVING)
    return {"batched": [*batched], "alone": [*alone], "beside": [*beside], "waits": [*(waits or ())], "after": [*after]}


def forked() -> int:
    """Return the exit code of a forked child that reads a tensor while this process has work under way."""
    x = torch.ones(1)
    late()
    dist.all_reduce(x)
    child = os.fork()
    if child == 0:
        os._exit(int(torch.tensor([7]).item()))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    x.item()
    return code


def main() -> None:
    """Do all of it, in the same order on both ranks."""
    ncclwatch.attach()
    dist.init_process_group("gloo")
    found = {
        "backend": dist.get_backend(),
        "recorder": type(life.current()).__name__,
        "one_call": one_call(),
        "beside_s": two_groups(waited=False),
        "behind_s": two_groups(waited=True),
        "objects": objects(),
        "messages": messages(),
        "forked": forked(),
    }
    found["in_order"] = in_order()
    rows = group_rows()
    found["after"] = [rows["0"].enqueued, rows["0"].completed]
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


main()
