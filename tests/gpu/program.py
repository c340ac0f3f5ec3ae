"""One rank on a GPU. `program.py CHECK` does what the function of that name does and prints what it found as JSON."""

import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import ncclwatch
from ncclwatch.contract.ring import facts
from ncclwatch.contract.ring.layout import Flag, Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank import attach as life
from ncclwatch_agent.gpu import node_gpus as gpus

ACCOUNT_S = 4.0  # NCCL's watchdog looks every 0.1 s and the pulse every 0.5 s; be generous
SECOND = 1_700_000_000  # cycles; no GPU of today is much faster


def begin() -> int:
    """Join the job on the GPU of this rank and return its number."""
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local % torch.cuda.device_count())
    dist.init_process_group("nccl")
    return dist.get_rank()


def ring() -> Ring:
    """Open this rank's own ring, as an agent does."""
    recorder = life.current()
    assert recorder is not None
    return Ring(recorder.ring.path)


def frontier(name: str = "0") -> tuple[int, int, int]:
    """Return (enqueued, completed, flags) of a group."""
    with ring() as found:
        group = next(group for group in found.groups() if group.name == name)
        return group.enqueued, group.completed, group.flags


def settled() -> list[int]:
    """Return (enqueued, completed) once the account has come, or after a while."""
    torch.cuda.synchronize()
    deadline = time.monotonic() + ACCOUNT_S
    while time.monotonic() < deadline and frontier()[0] != frontier()[1]:
        time.sleep(0.1)
    return list(frontier()[:2])


def completion() -> dict[str, object]:
    """A collective behind a long kernel: its call returns at once, and it is unfinished until the kernel ends."""
    ncclwatch.attach()
    begin()
    x = torch.ones(1024, device="cuda")
    dist.all_reduce(x)
    first = settled()
    torch.cuda._sleep(3 * SECOND)
    began = time.monotonic()
    dist.all_reduce(x)
    call_s = time.monotonic() - began
    time.sleep(1.0)
    enqueued, completed, flags = frontier()
    return {
        "first": first,
        "call_s": call_s,
        "during": [enqueued, completed],
        "asynchronous": bool(flags & Flag.ASYNC),
        "blind": bool(flags & Flag.BLIND),
        "after": settled(),
    }


def standing() -> dict[str, object]:
    """The host reads a value behind a long kernel: the pulse sees in which call it stands."""
    ncclwatch.attach()
    begin()
    x = torch.ones(1024, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(4 * SECOND)
    dist.all_reduce(x)
    x[0].item()
    with ring() as found:  # the newest sample is of the time in item(), or of just after
        sample = found.sample(0)
    return {"call": sample[1].get("call") if sample else None}


def memory() -> dict[str, object]:
    """Tensors of finished collectives are freed although the recorder has seen their works."""
    ncclwatch.attach()
    begin()
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        tensor = torch.empty(1_000_000, device="cuda")
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        del tensor, work
    torch.cuda.synchronize()
    at_once = torch.cuda.memory_allocated()
    recorder = life.current()
    return {
        "before": before,
        "at_once": at_once,
        "held": sum(len(group.works) for group in recorder.groups.values()) if recorder else -1,
    }


def capture() -> dict[str, object]:
    """A CUDA graph is captured while the pulse runs: any query of an event by another thread would end the capture."""
    ncclwatch.attach()
    begin()
    x = torch.ones(1024, device="cuda")
    for _ in range(3):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(2)
        dist.all_reduce(x)
        time.sleep(1.5)  # three pulses
        x.add_(1)
    x.fill_(1)
    graph.replay()
    torch.cuda.synchronize()
    return {"value": x[0].item(), "after": settled()}


def recorded() -> dict[str, object]:
    """What is recorded, and what NCCL's own flight recorder holds."""
    ncclwatch.attach()
    begin()
    x, many = torch.ones(1024, device="cuda"), torch.ones(1024 * dist.get_world_size(), device="cuda")
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    dist.broadcast(x, 0)
    dist.all_gather_into_tensor(many, x)
    dist.reduce_scatter_tensor(x, many)
    dist.all_gather([torch.empty_like(x) for _ in range(dist.get_world_size())], x)
    dist.barrier()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    with ring() as found:
        ours = [event.op.value for event in found.events(1000) if not event.op.is_p2p]
    dump = json.loads(torch._C._distributed_c10d._dump_nccl_trace_json(True, False))
    entries = [entry for entry in dump["entries"] if not entry["is_p2p"]]
    return {"ours": ours, "theirs": [entry["profiling_name"] for entry in entries], "after": settled()}


def duplicate() -> dict[str, object]:
    """Two ranks on one GPU."""
    ncclwatch.attach()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    before = device_facts()
    try:
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
    except RuntimeError as error:
        return {"error": str(error), "before": before, "after": device_facts()}
    return {"error": ""}


def devices() -> dict[str, object]:
    """What a rank says of its device, beside what NVML says of the same, asked as the agent asks."""
    ncclwatch.attach()
    began = torch.cuda.is_initialized()
    begin()
    before = device_facts()
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    node = asyncio.run(gpus.ask())
    return {
        "began": began, "before": before, "after": device_facts(), "node": [gpu.uuid for gpu in node.gpus],
        "failure": node.failure,
    }  # fmt: skip


def random_states() -> dict[str, object]:
    """The states of one device too many, restored on real devices with and without the remedy."""
    ncclwatch.attach()
    begin()
    states = [*torch.cuda.get_rng_state_all(), torch.cuda.get_rng_state()]
    drawn = torch.rand(4, device="cuda").tolist()
    try:
        torch.cuda.set_rng_state_all(states)
        error = ""
    except IndexError as raised:
        error = type(raised).__name__
    done = ncclwatch.restore_rng_state(states)
    again = torch.rand(4, device="cuda").tolist()
    with ring() as reading:
        told = facts.parse(reading.string(reading.words()[Word.FACTS])).rng
    return {
        "error": error, "drawn": drawn, "again": again, "left_over": done.left_over, "seeded": len(done.seeded),
        "told": [told.saved, told.present] if told is not None else [], "count": torch.cuda.device_count(),
    }  # fmt: skip


def device_facts() -> dict[str, object]:
    """Return what the ring says of this rank's device."""
    with ring() as reading:
        found = facts.parse(reading.string(reading.words()[Word.FACTS])).device
    return dataclasses.asdict(found) if found is not None else {}


def absent() -> dict[str, object]:
    """Rank 1 comes five seconds late: rank 0 has gone past its collective and stands where it reads the result."""
    ncclwatch.attach()
    rank = begin()
    x = torch.ones(1024, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(5.0)
        dist.all_reduce(x)
        return {"value": x[0].item()}
    began = time.monotonic()
    dist.all_reduce(x)
    call_s = time.monotonic() - began
    time.sleep(2.0)
    enqueued, completed, _ = frontier()
    return {"call_s": call_s, "during": [enqueued, completed], "value": x[0].item(), "after": settled()}


CHECKS: dict[str, Callable[[], dict[str, object]]] = {
    check.__name__: check
    for check in (completion, standing, memory, capture, recorded, duplicate, devices, random_states, absent)
}


def main() -> None:
    """Do what was asked for."""
    found = CHECKS[sys.argv[1]]()
    print(json.dumps(found), flush=True)
    if sys.argv[1] == "duplicate":
        os._exit(0)  # there is no communicator to be destroyed
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
