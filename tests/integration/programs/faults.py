"""Breaks each function of the recorder in turn, and checks that training does not notice.

Prints "ok <function>" for each; anything else is a failure.
"""

import inspect
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import ncclwatch
from ncclwatch.contract import config
from ncclwatch.rank import attach
from ncclwatch.rank.operations import Group
from ncclwatch.rank.patches import collectives
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring import ringfile
from ncclwatch.rank.where import call_sites

warnings.simplefilter("ignore")
NEVER = {"__init__", "memory", "close", "forget"}  # a constructor's failure is another test's


def broken(*_: object, **__: object) -> object:
    raise RuntimeError("injected")


def train() -> list[float]:
    """Use everything that is patched, and return numbers that must come out right."""
    rank = dist.get_rank()
    found: list[float] = []
    tensor = torch.tensor([1.0 + rank])
    dist.all_reduce(tensor)
    found.append(tensor.item())
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    found.append(tensor.item())
    other = torch.zeros(1)
    dist.send(tensor, 1) if rank == 0 else dist.recv(other, 0)
    dist.recv(other) if rank == 0 else dist.send(tensor, 0)
    found.append(other.item())
    found.append(functional.wait_tensor(functional.all_reduce(tensor, "sum", dist.group.WORLD)).item())
    group = dist.new_group([0, 1])
    dist.barrier(group)
    dist.destroy_process_group(group)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(torch.ones(6, 4), batch_size=2):
        with ncclwatch.phase("train"):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ncclwatch.step()
    found.append(round(model.module.weight.sum().item(), 4))
    try:
        raise ValueError("handled by the user")
    except ValueError:
        dist.barrier()
    try:
        dist.all_gather([torch.ones(1)], torch.ones(3))  # torch refuses this
    except (RuntimeError, ValueError):
        found.append(-1.0)
    return found


def recorder_functions() -> list[tuple[object, str]]:
    """Return every function of the recorder that runs in training, with what holds it."""
    recorder = type(attach.current())
    found: list[tuple[object, str]] = []
    for owner in dict.fromkeys((recorder, Recorder, ringfile.RingFile, call_sites.Sites)):
        found += [(owner, name) for name, value in vars(owner).items() if inspect.isfunction(value)]
    found += [(collectives, name) for name in ("group_of", "_first_tensor", "_global_rank")]
    found += [(Group, "next_label")]
    found += [(call_sites, "describe"), (call_sites, "is_users")]
    return [(owner, name) for owner, name in found if name not in NEVER]


def with_fault(owner: object, name: str, expected: list[float]) -> None:
    ncclwatch.attach()
    original = vars(owner)[name]
    setattr(owner, name, broken)
    try:
        found = train()
    finally:
        setattr(owner, name, original)
    ncclwatch.detach()
    assert found == expected, (name, found, expected)
    print("ok", f"{getattr(owner, '__name__', owner)}.{name}", flush=True)


def without_room(expected: list[float]) -> None:
    """Run out of groups, threads, peers, loaders and strings."""
    for limit in ("GROUPS_MAX", "THREADS_MAX", "PEERS_MAX", "LOADERS_MAX", "STRINGS_BYTES_MAX"):
        original = getattr(config, limit)
        setattr(config, limit, 0)
        try:
            ncclwatch.attach()
            assert train() == expected, limit
            works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(600)]
            for work in works:
                work.wait()
        finally:
            setattr(config, limit, original)
        assert attach.current().ring.word(11) > 0, f"{limit}: nothing was counted as dropped"
        ncclwatch.detach()
        print("ok", limit, flush=True)


def patched_by_another(expected: list[float]) -> None:
    """Another library wraps Work.wait and DataLoader's __next__ before us, or after us; any order of taking off."""
    from torch._C._distributed_c10d import Work
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def wrap(owner: type, name: str, calls: list[str]):
        original = getattr(owner, name)
        held = vars(owner)[name]

        def theirs(self, *args, **kwargs):
            calls.append(name)
            return original(self, *args, **kwargs)

        setattr(owner, name, theirs)
        return lambda: setattr(owner, name, held)

    for order in ("before", "after"):
        calls: list[str] = []
        if order == "after":
            ncclwatch.attach()
        undo = [wrap(Work, "wait", calls), wrap(_BaseDataLoaderIter, "__next__", calls)]
        if order == "before":
            ncclwatch.attach()
        assert train() == expected
        assert {"wait", "__next__"} <= set(calls), "the other library is not called any more"
        ncclwatch.detach()
        assert train() == expected
        ncclwatch.attach()  # in the order "after", our dead wrapper is still inside theirs
        assert train() == expected
        from ncclwatch.contract.ring.reader import Ring

        drawn = Ring(attach.current().ring.path).loaders()[0].last_drawn
        assert drawn == 3, f"{drawn} batches counted, 3 drawn"
        for each in undo:
            each()
        ncclwatch.detach()
        assert train() == expected
        print("ok patched", order, flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    expected = train()
    ncclwatch.attach()
    assert type(attach.current()).__name__ == ("NativeRecorder" if sys.argv[1] == "native" else "Recorder")
    assert (attach.current().hot is not None) == (sys.argv[1] == "hot")
    faults = recorder_functions()
    ncclwatch.detach()
    for owner, name in faults:
        with_fault(owner, name, expected)
    without_room(expected)
    patched_by_another(expected)
    print("all", len(faults), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
