"""Does more than the recorder's tables hold at once: threads, sends under way, groups without a name, code.

Prints "ok <what>" for each; anything else is a failure.
"""

import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed import _dist2
from torch.distributed import distributed_c10d as c10d

import ncclwatch
from ncclwatch.contract import config
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.views import Picture, rank_view
from ncclwatch.rank import attach

WORKS = 256  # that both recorders ask at once
CODES = 20_000


def view():
    with Ring(attach.current().ring.path) as ring:
        return rank_view(Picture.of(ring, time.monotonic_ns()))


def a_thread_for_each_checkpoint(alone: dist.ProcessGroup) -> None:
    tids = []

    def save() -> None:
        tids.append(threading.get_native_id())
        dist.all_reduce(torch.ones(1), group=alone)
        dist.all_reduce(torch.ones(1), group=alone)

    dist.all_reduce(torch.ones(1), group=alone)
    for number in range(3 * config.THREADS_MAX):
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
        found = view()
        assert [op.thread for op in found.history[-2:]] == [tids[-1]] * 2, number
        assert next(each for each in found.threads if each.tid == tids[-1]).issued == 2, number
    found = view()
    main = threading.get_native_id()
    assert sum(op.thread == main for op in found.history if op.group == found.history[-1].group) == 1
    assert found.dropped == 0


def more_threads_at_once_than_there_are_rows(alone: dist.ProcessGroup) -> None:
    over, met = threading.Event(), threading.Barrier(2 * config.THREADS_MAX + 1)

    def live() -> None:
        dist.all_reduce(torch.ones(1), group=alone)
        met.wait()
        over.wait()

    threads = [threading.Thread(target=live) for _ in range(2 * config.THREADS_MAX)]
    for thread in threads:
        thread.start()
    met.wait()
    found = view()
    over.set()
    for thread in threads:
        thread.join()
    newest = found.history[-2 * config.THREADS_MAX :]
    assert threading.get_native_id() not in {op.thread for op in newest}
    assert 0 in {op.thread for op in newest}  # unknown, and said so
    assert found.dropped > 0


def sends_under_way(rank: int) -> None:
    if rank == 0:
        works = [dist.isend(torch.ones(1), 1) for _ in range(4 * WORKS)]
        for work in works:
            work.wait()
        done = "sends_completed"
    else:
        tensors = [torch.zeros(1) for _ in range(4 * WORKS)]
        works = [dist.irecv(tensor, 0) for tensor in tensors]
        for work in works:
            work.wait()
        done = "recvs_completed"
    until = time.monotonic() + 20
    while getattr(view().peers[0], done) < 4 * WORKS:
        assert time.monotonic() < until, view().peers
    try:
        dist.send(torch.ones(1).to_sparse(), 1 - rank)
    except (RuntimeError, ValueError, NotImplementedError):
        pass
    else:
        raise AssertionError("torch refuses this")
    assert view().peers[0].sends == (4 * WORKS if rank == 0 else 0)


def groups_without_a_name() -> None:
    # As _dist2.new_group, but it gives all groups one store, in which each would find the addresses of the one before.
    store, rank = c10d._get_default_store(), dist.get_rank()
    made = [
        _dist2._gloo_factory(
            dist.PrefixStore(f"nameless {number}", store), rank, 2, dist.default_pg_timeout, torch.device("cpu")
        )
        for number in range(2)
    ]
    for group in (*made, made[0]):
        group.allreduce([torch.ones(1)]).wait()
    nameless = [group for group in view().groups if group.name.startswith("nameless")]
    assert [(group.enqueued, group.completed) for group in nameless] == [(2, 2), (1, 1)], nameless


def code_made_for_ever(alone: dist.ProcessGroup) -> None:
    given = {"dist": dist, "alone": alone, "one": torch.ones(1)}
    dropped = view().dropped
    for number in range(CODES):  # code of a hundred lines, made again and again
        exec(compile("def issue():\n    dist.all_reduce(one, group=alone)", f"/made/{number % 100}.py", "exec"), given)
        given.pop("issue")()
    found = view()
    files = [op.site.file if op.site else "" for op in found.history[-100:]]
    assert files == [f"/made/{number}.py" for number in range(100)], files
    assert found.dropped == dropped


def main() -> None:
    dist.init_process_group("gloo")
    ncclwatch.attach()
    assert type(attach.current()).__name__ == ("NativeRecorder" if sys.argv[1] == "native" else "Recorder")
    assert (attach.current().hot is not None) == (sys.argv[1] == "hot")
    rank = dist.get_rank()
    alone = [dist.new_group([each]) for each in range(2)][rank]
    for number, task in enumerate(
        (
            lambda: a_thread_for_each_checkpoint(alone),
            lambda: sends_under_way(rank),
            groups_without_a_name,
            lambda: more_threads_at_once_than_there_are_rows(alone),
            lambda: code_made_for_ever(alone) if rank == 0 else None,  # 6 s of CPU
        )
    ):
        task()
        print("ok", number, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
