"""Ranks that save a checkpoint every few steps and resume from the newest one. The last rank is stopped once.

resumes.py DIRECTORY [watched] [heartbeats] [calculated] [timeout=SECONDS]

"watched" attaches ncclwatch. "heartbeats" sends them to NVRx's ft_launcher, and "calculated" lets NVRx calculate its
timeouts at each checkpoint. "timeout" is that of the first attempt's group.

DIRECTORY gets `onset`, which holds the time of the stop, and for each attempt and rank the files `began` (torch is
imported) and `stepped` (the first step has finished).
"""

import contextlib
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, SAVED_EACH, STOPPED_AT = 60, 5, 33

directory, options = Path(sys.argv[1]), sys.argv[2:]
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["RANK"])


def note(name: str) -> None:
    """Write the time and this process into a file that is never seen half."""
    draft = directory / f".{name}.{attempt}.{rank}"
    draft.write_text(f"{time.time()} {os.getpid()}")
    draft.rename(directory / name)


def initialise() -> None:
    given = [each.removeprefix("timeout=") for each in options if each.startswith("timeout=")]
    # In the first attempt alone: a short one would also end the next attempt's wait for ranks that start late.
    timeout = timedelta(seconds=float(given[0])) if given and attempt == "0" else None
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group("gloo", timeout=timeout)
        return
    # With torch 2.13 gloo may find the addresses of the attempt before in torchrun's store.
    shared = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"attempt{attempt}", shared), rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]), timeout=timeout,
    )  # fmt: skip


def main() -> None:
    note(f"began{attempt}-{rank}")
    if "watched" in options:
        import ncclwatch

        ncclwatch.attach()
    client = None
    if "heartbeats" in options:
        from nvidia_resiliency_ext import fault_tolerance

        client = fault_tolerance.RankMonitorClient()
        client.init_workload_monitoring()
    initialise()
    weights, first = torch.zeros(100_000), 0
    checkpoint = directory / "checkpoint.pt"
    with contextlib.suppress(FileNotFoundError):
        saved = torch.load(checkpoint)
        weights, first = saved["weights"], saved["step"]
        if client is not None and "calculated" in options:
            client.load_state_dict(saved["nvrx"])
    for step in range(first, STEPS):
        if step == STOPPED_AT and rank == dist.get_world_size() - 1 and not (directory / "onset").exists():
            note("onset")
            os.kill(os.getpid(), signal.SIGSTOP)
        gradient = torch.ones(100_000)
        time.sleep(0.1)
        dist.all_reduce(gradient)
        weights += gradient
        if client is not None:
            client.send_heartbeat()
        if step == first:
            note(f"stepped{attempt}-{rank}")
        if step % SAVED_EACH == SAVED_EACH - 1:
            save(checkpoint, weights, step + 1, client)
    print(f"through from step {first}", flush=True)
    dist.destroy_process_group()


def save(checkpoint: Path, weights: torch.Tensor, step: int, client: object) -> None:
    if client is not None and "calculated" in options:
        client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
    if rank == 0:
        state = client.state_dict() if client is not None else {}
        torch.save({"weights": weights, "step": step, "nvrx": state}, f"{checkpoint}.new")
        Path(f"{checkpoint}.new").rename(checkpoint)


main()
