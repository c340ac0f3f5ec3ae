"""Says which rank of how many a process is: by its environment, by its call of init_process_group, or by torch."""

import operator
import os
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

Place = tuple[int, int]  # rank, world size


def from_environment() -> Place | None:
    """Return what the launcher set."""
    for rank, world in (
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ):
        if os.environ.get(rank, "").isdigit() and os.environ.get(world, "").isdigit():
            return int(os.environ[rank]), int(os.environ[world])
    return None


def from_torch() -> Place | None:
    """Return the place in the default group, None before there is one."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else None


def from_call(arguments: Mapping[str, object]) -> Place | None:
    """Return what a call of init_process_group says, as torch reads it: its arguments, its URL, RANK and WORLD_SIZE."""
    said: dict[str, object] = {name: arguments.get(name, -1) for name in ("rank", "world_size")}
    method = arguments.get("init_method")
    url = urlsplit(method) if isinstance(method, str) else None
    if url is not None:
        said |= {name: text for name, text in parse_qsl(url.query) if said.get(name) == -1}
    if arguments.get("store") is None and (url is None or url.scheme == "env"):
        said |= {name: os.environ.get(name.upper(), "") for name, number in said.items() if number == -1}
    rank, world = (_number(each) for each in said.values())
    return (rank, world) if 0 <= rank < world else None


def _number(said: object) -> int:
    if isinstance(said, str):
        return int(said) if said.isdigit() else -1
    try:
        return operator.index(said)  # type: ignore[arg-type]
    except TypeError:
        return -1
