"""Says which rank of how many a process is: by its environment, by its call of init_process_group, or by torch."""

import operator
import os
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from ncclwatch.contract import config

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


def on_this_node(place: Place, environ: Mapping[str, str] = os.environ) -> Place:
    """Return which rank of how many on this node a process is, as far as its launcher says.

    Where that is unknown, its own rank is returned for the first number, and 0 for the second. Slurm and MPI are
    believed if they started as many processes as there are ranks: a process of theirs may also be a launcher itself.
    """
    rank, world_size = place
    if environ.get("LOCAL_RANK", "").isdigit():
        return int(environ["LOCAL_RANK"]), _count(environ, "LOCAL_WORLD_SIZE")
    for world, local_rank, local_world in (
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ):
        if _count(environ, world) == world_size and environ.get(local_rank, "").isdigit():
            return int(environ[local_rank]), _count(environ, local_world)
    if _count(environ, "SLURM_STEP_NUM_TASKS") == world_size and environ.get("SLURM_LOCALID", "").isdigit():
        tasks = _tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        node = _count(environ, "SLURM_NODEID")
        return int(environ["SLURM_LOCALID"]), tasks[node] if node < len(tasks) else 0
    return rank, _count(environ, "LOCAL_WORLD_SIZE")


def attempt(environ: Mapping[str, str]) -> int:
    """Return how often the launcher has begun this job again: torchrun by itself, Slurm by a requeue, `ncclwatch run`.

    torchrun counts from 0 again in a job that was requeued: that is another launch, see `instance`.
    """
    if environ.get("TORCHELASTIC_RESTART_COUNT", ""):
        return _count(environ, "TORCHELASTIC_RESTART_COUNT")
    return _launches(environ)


def restarts_left(environ: Mapping[str, str]) -> str:
    """Return how often torchrun would start the ranks again if they failed, "" under any other launcher."""
    if not environ.get("TORCHELASTIC_RESTART_COUNT", ""):
        return ""
    return str(max(0, _count(environ, "TORCHELASTIC_MAX_RESTARTS") - _count(environ, "TORCHELASTIC_RESTART_COUNT")))


def instance(environ: Mapping[str, str]) -> str:
    """Return what tells two launches of one name apart: where its ranks meet, and torchrun's run.

    Where torchrun counts the attempts, each requeue by Slurm and each restart by `ncclwatch run` is another launch.
    """
    said = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}/{environ.get('TORCHELASTIC_RUN_ID', '')}"
    again = _launches(environ) if environ.get("TORCHELASTIC_RESTART_COUNT", "") else 0
    return f"{said}#{again}" if again else said


def meeting_of(endpoint: tuple[str, int] | None) -> dict[str, str]:
    """Return a store's address as a launcher puts it into the environment, {} for none."""
    return {} if endpoint is None else {"MASTER_ADDR": endpoint[0], "MASTER_PORT": str(endpoint[1])}


def _launches(environ: Mapping[str, str]) -> int:
    return _count(environ, "SLURM_RESTART_COUNT") + _count(environ, config.ENV_RESTARTS)


def _count(environ: Mapping[str, str], name: str) -> int:
    said = environ.get(name, "")
    return int(said) if said.isdigit() else 0


def _tasks_per_node(said: str) -> list[int]:
    """Return the tasks on each node: Slurm writes `8(x2),4` for 8, 8 and 4 (sbatch(1), SLURM_TASKS_PER_NODE)."""
    found: list[int] = []
    for tasks, nodes in re.findall(r"(\d{1,6})(?:\(x(\d{1,6})\))?", said):
        found += [int(tasks)] * int(nodes or 1)
    return found


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
