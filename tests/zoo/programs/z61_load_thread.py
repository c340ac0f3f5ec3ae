"""Share each rank's load from a thread, in a group of its own, while the main thread trains.

torchrun --standalone --nproc-per-node 3 z61_load_thread.py
"""

import threading
import time

import torch
import torch.distributed as dist

import ncclwatch
import onset

STEPS, NEW_PHASE = 200, 80


def share_load(group: dist.ProcessGroup, recent: list[float], stop: threading.Event) -> None:
    while not stop.is_set():
        load = torch.tensor([sum(recent) / len(recent)])
        dist.all_reduce(load, group=group)
        time.sleep(0.2)


def train(recent: list[float]) -> None:
    for step in range(STEPS):
        begun = time.perf_counter()
        dist.all_reduce(torch.randn(100))
        recent.append(time.perf_counter() - begun)
        if step == NEW_PHASE and dist.get_rank() == 1:
            onset.mark()
            recent.clear()
            time.sleep(1)
        time.sleep(0.01)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    group = dist.new_group()
    recent, stop = [0.0], threading.Event()
    thread = threading.Thread(target=share_load, args=(group, recent, stop), name="load", daemon=True)
    thread.start()
    train(recent)
    stop.set()
    thread.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
