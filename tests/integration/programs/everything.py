"""Runs one of each kind of communication, then prints what the ring and torch's flight recorder hold of it."""

import json
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

warnings.simplefilter("ignore")
WHEN = sys.argv[1]
if WHEN == "before":
    ncclwatch.attach()
dist.init_process_group("gloo")
if WHEN == "after":
    dist.all_reduce(torch.ones(2))
    ncclwatch.attach()
    ncclwatch.attach()
rank, world = dist.get_rank(), dist.get_world_size()


def mark(name: str) -> None:
    from ncclwatch.rank import attach

    recorder = attach.current()
    recorder.drain_all()
    marks.append((name, recorder.ring.word(2)))


marks: list[tuple[str, int]] = []
x = torch.ones(4)
mark("begin")
dist.all_reduce(x, op=dist.ReduceOp.MAX)
mark("all_reduce")
dist.barrier()
mark("barrier")
dist.broadcast(x, src=1)
mark("broadcast")
gathered = [None] * world
dist.all_gather_object(gathered, {"rank": rank})
mark("all_gather_object")
dist.broadcast_object_list([rank], src=0)
mark("broadcast_object_list")
dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
mark("p2p")
ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
mark("ddp init")
ddp(x).sum().backward()
mark("ddp backward")
functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD) + 1
mark("functional")
mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]).full_tensor() + 1
mark("dtensor")
sharded = torch.nn.Linear(4, 4)
fully_shard(sharded)
sharded(x).sum().backward()
mark("fsdp2")
FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))(x).sum().backward()
mark("fsdp1")
pair = dist.new_group([0, 1], group_desc="pair")
work = dist.all_reduce(x, group=pair, async_op=True)
work.wait()
mark("async")
with tempfile.TemporaryDirectory() as place:
    dcp.save({"model": torch.nn.Linear(4, 4).state_dict()}, checkpoint_id=f"{place}/{rank}", no_dist=False)
mark("dcp")

from ncclwatch.contract.ring.reader import Ring  # noqa: E402
from ncclwatch.rank import attach  # noqa: E402
from ncclwatch.rank.torch_versions import flight_recorder_entries  # noqa: E402

with Ring(attach.current().ring.path) as ring:
    events = ring.events(1000)
    groups = {group.number: group for group in ring.groups()}
    found = {
        name: [
            (groups[e.group].name, e.seq, e.op.value, e.numel, e.dtype, e.reduce_op, e.peer)
            for e in events
            if marks[number][1] <= e.number < until
        ]
        for number, (name, until) in enumerate(marks[1:])
    }
    sites = sorted({ring.string(e.site).split("\x1f")[0].rsplit("/", 1)[-1] for e in events})
    frontier = {g.name: (g.enqueued, g.completed) for g in groups.values()}
    waits = [thread.wait for thread in ring.threads()]
recorder = flight_recorder_entries()
witness: dict[str, int] = {}
for entry in recorder:
    witness[entry["process_group"][0]] = max(witness.get(entry["process_group"][0], 0), entry["collective_seq_id"])
if rank == 0:
    print(json.dumps({"found": found, "sites": sites, "frontier": frontier, "witness": witness, "waits": str(waits)}))
dist.destroy_process_group()
