"""A healthy job that trains until its server has heard of all its ranks, and then ends."""

import json
import os
import urllib.request

import torch
import torch.distributed as dist

import ncclwatch


def is_watched() -> bool:
    """Say whether the server of this job has heard of all ranks."""
    with urllib.request.urlopen(f"{os.environ['NCCLWATCH_SERVER']}/api/v1/jobs", timeout=30) as answer:
        return any(job["ranks_seen"] == dist.get_world_size() for job in json.load(answer))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    watched = torch.zeros(1)
    while not watched:
        watched = torch.tensor([float(dist.get_rank() == 0 and is_watched())])
        dist.all_reduce(watched)
    print(f"done {watched.item():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
