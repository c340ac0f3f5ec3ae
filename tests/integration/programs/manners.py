"""Checks from inside a rank that attach() is a good guest; prints "ok" for each check that holds."""

import functools
import os
import pickle
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.multiprocessing
from torch import save
from torch._C import _distributed_c10d
from torch.distributed import destroy_process_group, init_process_group, new_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ncclwatch

BOUND_BEFORE = (save, init_process_group, new_group, destroy_process_group, torch.distributed.checkpoint.save)


def patched_names() -> dict[str, object]:
    owners = {
        "Work": _distributed_c10d.Work,
        "Store": _distributed_c10d.Store,
        "c10d": dist.distributed_c10d,
        "dist": dist,
        "graph": torch.autograd.graph,
        "autograd": torch.autograd,
        "DDP": DistributedDataParallel,
        "DataLoader": DataLoader,
        "os": os,
        "sys": sys,
    }
    found = {f"{owner}.{name}": value for owner, place in owners.items() for name, value in vars(place).items()}
    codes = {f"{name}()": value.__code__ for name, value in found.items() if hasattr(value, "__code__")}
    return found | codes


class Numbers(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        from ncclwatch.rank import attach

        assert attach.current() is None, "a DataLoader worker is no rank"
        return torch.tensor([float(index)])


def events() -> int:
    from ncclwatch.contract.ring.layout import Word
    from ncclwatch.rank import attach

    return attach.current().ring.word(Word.EVENTS_HEAD)


def detach_restores_every_name() -> None:
    before = patched_names()
    ncclwatch.attach()
    during = patched_names()
    assert sum(before[name] is not during[name] for name in before) > 10
    ncclwatch.detach()
    after = patched_names()
    # What torch itself fills in meanwhile is not ours.
    torchs_own = {"dist._spmd_types_available"}
    changed = [name for name in before if before[name] is not after.get(name) and name not in torchs_own]
    assert not changed, changed
    assert not [thread for thread in threading.enumerate() if "ncclwatch" in thread.name]


def detach_and_attach_again_in_mid_training() -> None:
    ncclwatch.attach()
    dist.all_reduce(torch.ones(1))
    ncclwatch.detach()
    dist.all_reduce(torch.ones(1))
    ncclwatch.attach()
    before = events()
    dist.all_reduce(torch.ones(1))
    assert events() == before + 1


def detach_leaves_no_directory_open() -> None:
    def directories() -> list[str]:
        found = (path.resolve() for path in Path("/proc/self/fd").iterdir())
        return [str(path) for path in found if path.is_dir() and "/proc/" not in str(path)]

    ncclwatch.detach()
    before = directories()
    ncclwatch.attach()
    ncclwatch.detach()
    assert directories() == before, directories()
    ncclwatch.attach()


def workers_of_a_loader_record_nothing() -> None:
    for workers in (0, 2):
        if workers:
            assert len(list(DataLoader(Numbers(), num_workers=workers, batch_size=2))) == 6


def a_forked_child_leaves_the_ring_alone() -> None:
    before = events()
    pid = os.fork()
    if pid == 0:
        torch.autograd.backward(torch.ones(1, requires_grad=True).sum())
        ncclwatch.step()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert events() == before


def many_threads_issue_at_once() -> None:
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(4)]
    before = events()

    def issue(group: dist.ProcessGroup) -> None:
        for _ in range(50):
            dist.all_reduce(torch.ones(8), group=group)

    threads = [threading.Thread(target=issue, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events() == before + 200


def steps_and_phases_are_marked() -> None:
    from ncclwatch.contract.ring.layout import Word
    from ncclwatch.contract.ring.reader import Ring
    from ncclwatch.rank import attach

    ring = attach.current().ring
    steps = ring.word(Word.STEPS)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert ring.word(Word.STEPS) == steps + 1
    ncclwatch.step(41)
    optimizer.step()
    ncclwatch.step()
    assert ring.word(Word.STEPS) == 42
    with ncclwatch.phase("validate"), ncclwatch.phase("sample"), Ring(ring.path) as reader:
        assert reader.string(reader.words()[Word.PHASE]) == "sample"
    assert ring.word(Word.PHASE) == 0


def a_wrong_call_is_the_users_error_and_is_not_counted() -> None:
    before = events()
    try:
        dist.all_reduce("not a tensor")
    except (TypeError, ValueError):
        pass
    else:
        raise AssertionError("torch took it")
    dist.all_reduce(torch.ones(1))
    assert events() == before + 1


def completion_is_seen_without_anybody_waiting() -> None:
    from ncclwatch.rank import attach

    work = dist.all_reduce(torch.ones(4), async_op=True)
    group = attach.current().groups["0"]
    deadline = time.monotonic() + 10
    while group.completed < group.enqueued and time.monotonic() < deadline:
        time.sleep(0.01)
    assert group.completed == group.enqueued
    assert not group.works, "a finished work keeps its tensors alive"
    work.wait()


def compiled_code_has_no_graph_break() -> None:
    def reduced(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x + 1

    before = events()
    compiled = torch.compile(reduced, fullgraph=True, backend="eager")
    compiled(torch.ones(2))
    assert events() == before + 1


def functions_bound_before_are_pickled_as_ever() -> None:
    for function in BOUND_BEFORE:
        assert pickle.loads(pickle.dumps(function)) is function
        assert pickle.loads(pickle.dumps(functools.partial(function))).func is function


def functions_bound_before_are_recorded() -> None:
    from ncclwatch.rank import attach

    group = new_group(list(range(dist.get_world_size())), group_desc="bound before")
    dist.all_reduce(torch.ones(1), group=group)
    name = group.group_name
    assert name in attach.current().groups
    destroy_process_group(group)
    assert name not in attach.current().groups


def a_spawned_process_gets_functions_bound_before() -> None:
    torch.multiprocessing.spawn(is_torchs, args=(BOUND_BEFORE,), nprocs=1)


def is_torchs(_: int, functions: tuple[object, ...]) -> None:
    assert functions == BOUND_BEFORE


def main() -> None:
    detach_restores_every_name()
    init_process_group("gloo")
    checks = (
        detach_and_attach_again_in_mid_training,
        detach_leaves_no_directory_open,
        workers_of_a_loader_record_nothing,
        a_forked_child_leaves_the_ring_alone,
        many_threads_issue_at_once,
        steps_and_phases_are_marked,
        a_wrong_call_is_the_users_error_and_is_not_counted,
        completion_is_seen_without_anybody_waiting,
        compiled_code_has_no_graph_break,
        functions_bound_before_are_pickled_as_ever,
        functions_bound_before_are_recorded,
        a_spawned_process_gets_functions_bound_before,
    )
    print("ok detach_restores_every_name")
    for check in checks:
        check()
        print("ok", check.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
