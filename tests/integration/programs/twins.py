"""Records the same operations twice, in Python alone and with the hot path in C, and compares the two rings.

The operations are drawn at random, from a seed. Prints how many there were, and where the rings differ.
"""

import itertools
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from ncclwatch.contract import config
from ncclwatch.contract.ring import layout
from ncclwatch.native import loading
from ncclwatch.rank.native import quicken
from ncclwatch.rank.patches import collectives
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import DRAIN_ABOVE, Recorder
from ncclwatch.rank.ring.ringfile import RingFile

COUNT = 400
lines: list = [None]  # of code that is made as the program runs
others: list = [None]  # another thread
kept: list[BaseException] = []  # a recorder knows an exception by its address, which must not come back
SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX


def of_size(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(size, dtype=dtype)


def in_a_helper(issue) -> None:
    issue()


def without_gradients(issue) -> None:
    with torch.no_grad():
        issue()


def while_an_exception_is_handled(issue) -> None:
    try:
        raise LookupError("missing")
    except LookupError as error:
        kept.append(error)
        issue()


def in_another_thread(issue) -> None:
    others[0].submit(issue).result()


def in_a_librarys_thread(_) -> None:
    ones = of_size(3)
    others[0].submit(dist.all_reduce, ones).result()


def from_new_code(issue) -> None:
    exec(compile("\n" * next(lines[0]) + "issue()", "/lines/here.py", "exec"), {"issue": issue})


def several(issue) -> None:
    issue()
    issue()


def refused() -> None:
    try:
        dist.all_gather([of_size(3)], of_size(4))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        kept.append(error)


def coalesced() -> None:
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=False):
        dist.all_reduce(of_size(5))
        dist.all_reduce(of_size(6))


def barrier_of_its_own(group) -> None:
    dist.barrier(group)


def ways(world: int, group: dist.ProcessGroup):
    """Return what may be issued, waited for before it returns."""
    always = [
        lambda: dist.all_reduce(of_size(3)),
        lambda: dist.all_reduce(of_size(7, torch.bfloat16), op=MAX),
        lambda: dist.all_reduce(of_size(7, torch.int64), group=group),
        lambda: dist.all_reduce(of_size(9), async_op=True).wait(),
        lambda: dist.all_reduce(of_size(200_000)),
        lambda: dist.broadcast(of_size(4), 0),
        lambda: dist.broadcast(of_size(4), 0, group=group),
        lambda: dist.reduce(of_size(4), 0, op=SUM),
        lambda: dist.all_gather([of_size(2) for _ in range(world)], of_size(2)),
        lambda: dist.all_gather_into_tensor(of_size(2 * world), of_size(2)),
        lambda: dist.reduce_scatter_tensor(of_size(2), of_size(2 * world)),
        lambda: dist.all_to_all_single(of_size(2 * world), of_size(2 * world)),
        lambda: dist.gather(of_size(2), [of_size(2) for _ in range(world)]),
        lambda: dist.scatter(of_size(2), [of_size(2) for _ in range(world)]),
        lambda: barrier_of_its_own(group),
        lambda: torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(of_size(8), "sum", "0")),
        lambda: group.allreduce([of_size(4), of_size(4)]).wait(),
        refused,
    ]
    return (
        always
        if world == 1
        else [*always, coalesced, lambda: dist.send(of_size(2), 1), lambda: dist.recv(of_size(2), 1)]
    )


AROUND = (
    in_a_helper,
    in_a_helper,
    without_gradients,
    while_an_exception_is_handled,
    in_another_thread,
    in_a_librarys_thread,
    from_new_code,
    several,
)


def never_waited_for(recorder: Recorder) -> list[bool]:
    """Return whether works are let go of that nobody waits for, and whether those are kept that just ended."""
    works = [dist.all_reduce(of_size(2), async_op=True) for _ in range(2 * DRAIN_ABOVE)]
    while not all(work.is_completed() for work in works):
        pass
    works.append(dist.all_reduce(of_size(2), async_op=True))
    found = [len(recorder.groups["0"].works) <= DRAIN_ABOVE, len(recorder._retired) >= DRAIN_ABOVE]
    while not works[-1].is_completed():
        pass
    recorder.drain_all()  # how many were through before is the backend's own affair
    return found


def play(recorder: Recorder, world: int, group: dist.ProcessGroup, seed: int) -> list[object]:
    """Issue what the seed says, and return what the recorder knows after it."""
    lines[0], others[0] = itertools.cycle(range(40)), ThreadPoolExecutor(1, thread_name_prefix="other")
    drawn, issued = random.Random(seed), ways(world, group)
    for number in range(COUNT):
        around, issue = drawn.choice(AROUND), drawn.choice(issued)
        if number % 50 == 20:
            recorder.set_label(recorder.sites.label(f"part {number}"))
        if number % 50 == 30:
            recorder.set_label(0)
            recorder.set_buckets("0", [(3, recorder.sites.label("bucket")), (7, 0)])
        if number % 50 == 40:
            recorder.set_buckets("0", [])
            recorder.count_batch(number % 3, number)
            recorder.count_forward()
        if number % 50 == 45:
            outer = recorder.enter_region()
            issue()
            recorder.leave_region(outer)
        around(issue)
    others[0].shutdown()
    held = never_waited_for(recorder) if world == 1 else []
    state, retired = recorder.state(), list(recorder._retired)[: recorder._weighed]
    return [
        held,
        (state.row, state.issued, state.wait, recorder.pending_exception),
        (len(recorder._unheld), sum(numel for _, numel, _ in retired) - recorder._retired_numel),
        len(recorder.open_works) if not recorder._unheld else "as many as had an address of their own",
        *(
            (each.name, each.enqueued, each.prefix, each.completed, each.newest_event, each.peers, len(each.works))
            for each in recorder.groups.values()
        ),
    ]


def record(directory: str, hot, world: int, group: dist.ProcessGroup, seed: int) -> tuple[bytearray, list[object]]:
    """Return the ring of one recorder, without what differs between any two, and what the recorder knows."""
    ring = RingFile(f"{directory}/{'c' if hot else 'python'}.ring", rank=0, local_rank=0, world=(world, 1), attempt=0)
    ring.clock = itertools.count(1_000_000_000, 1_000).__next__
    recorder, patches = Recorder(ring), Patches()
    waits: list[bytes] = []  # what the ring said inside each wait
    patches.replace(_distributed_c10d.Work, "wait", lambda original: seen_by(original, ring, waits))
    recorder.sites.grad_mode = torch.is_grad_enabled
    recorder.thread()
    if hot is not None:
        quicken(recorder, hot)
    collectives.install(patches, lambda: recorder, None, hot)
    try:
        known = play(recorder, world, group, seed)
    finally:
        patches.restore()
    found = bytearray(ring.memory)
    found[: layout.HEADER_BYTES] = bytes(layout.HEADER_BYTES)
    for word in (layout.Word.WAITED_NS, layout.Word.PEERS_WAITED_NS):
        found[layout.HEADER_BYTES + 8 * word : layout.HEADER_BYTES + 8 * word + 8] = bytes(8)
    for row in range(config.THREADS_MAX):
        at = layout.THREADS_AT + row * layout.THREAD_BYTES
        found[at : at + 4] = bytes(4)
    for meter in range(layout.METERS_AT, layout.METERS_AT + config.METERS_MAX * layout.METER_BYTES, layout.METER_BYTES):
        slots = meter + layout.METER_HEAD.size
        for at in range(slots, slots + layout.METER_SLOTS * layout.METER_SLOT.size, layout.METER_SLOT.size):
            found[at + 4 : at + 16] = bytes(12)  # when, and how long
    return found, [*known, waits]


def seen_by(original, ring: RingFile, waits: list[bytes]):
    """Return Work.wait, which notes what the ring says that threads wait in before it waits."""

    def wait(self, *args, **kwargs):
        end = layout.THREADS_AT + 3 * layout.THREAD_BYTES
        rows = bytearray(ring.memory[layout.THREADS_AT : end])
        for at in range(0, len(rows), layout.THREAD_BYTES):
            rows[at : at + 4] = bytes(4)
        waits.append(bytes(rows))
        return original(self, *args, **kwargs)

    return wait


def main(backend: str, directory: str, seed: int) -> None:
    world = 2 if backend == "fake" else 1
    store = FakeStore() if backend == "fake" else dist.HashStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=world)
    group = dist.new_group([0])
    hot = loading.load_alone()
    assert hot is not None
    (python, known), (compiled, known_too) = (record(directory, each, world, group, seed) for each in (None, hot))
    differ = [at for at in range(len(python)) if python[at] != compiled[at]] if python != compiled else []
    events = int.from_bytes(python[layout.HEADER_BYTES + 16 : layout.HEADER_BYTES + 24], "little")
    dropped = int.from_bytes(python[layout.HEADER_BYTES + 88 : layout.HEADER_BYTES + 96], "little")
    assert backend == "fake" or known[0] == [True, True]
    waits, waits_too = known.pop(), known_too.pop()
    assert backend == "fake" or len(set(waits)) > 100, len(waits)  # a fake work has a wait of its own
    differ += [f"wait {n}" for n, (one, other) in enumerate(zip(waits, waits_too, strict=True)) if one != other]
    print(
        f"{events} operations, {dropped} dropped, differ at {differ[:20]}",
        "" if known == known_too else (known, known_too),
    )
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a fake group has nobody to end with


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
