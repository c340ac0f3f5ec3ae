"""What launchers say of a rank by their variables: its place on its node, and how often its job was begun again."""

import pytest

from ncclwatch.rank.identity import attempt as attempt_of
from ncclwatch.rank.identity import instance as instance_of
from ncclwatch.rank.identity import on_this_node

SLURM = {
    "SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "20", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2),4",
}  # fmt: skip
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    ("place", "environ", "found"),
    [
        ((3, 4), {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (1, 2)),
        ((3, 4), {"LOCAL_RANK": "1"}, (1, 0)),
        ((3, 4), {}, (3, 0)),
        ((3, 4), {"LOCAL_RANK": "none", "LOCAL_WORLD_SIZE": "x"}, (3, 0)),
        ((9, 20), SLURM, (1, 8)),
        ((19, 20), SLURM | {"SLURM_LOCALID": "3", "SLURM_NODEID": "2"}, (3, 4)),
        ((9, 20), SLURM | {"SLURM_NODEID": "7"}, (1, 0)),
        # One task a node that starts the ranks itself.
        ((9, 16), SLURM | {"SLURM_STEP_NUM_TASKS": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}, (1, 8)),
        ((9, 16), SLURM | {"SLURM_STEP_NUM_TASKS": "2"}, (9, 0)),
        ((3, 4), MPI, (1, 2)),
        ((3, 8), MPI, (3, 0)),
        ((3, 4), {"PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (1, 2)),
    ],
)
def test_a_launcher_says_how_many_are_here(place: tuple[int, int], environ: dict[str, str], found: tuple[int, int]):
    assert on_this_node(place, environ) == found


AT = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "attempt", "instance"),
    [
        ({}, 0, "node0:29500/"),
        ({"TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "2"}, 2, "node0:29500/r"),
        ({"SLURM_RESTART_COUNT": "1"}, 1, "node0:29500/"),
        ({"NCCLWATCH_RESTARTS": "2", "SLURM_RESTART_COUNT": "1"}, 3, "node0:29500/"),
        ({"NCCLWATCH_RESTARTS": "2", "TORCHELASTIC_RESTART_COUNT": "1"}, 1, "node0:29500/#2"),
        (
            {"TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "0", "SLURM_RESTART_COUNT": "1"},
            0,
            "node0:29500/r#1",
        ),
        ({"TORCHELASTIC_RESTART_COUNT": "many"}, 0, "node0:29500/"),
    ],
    ids=[
        "first",
        "torchrun",
        "slurm",
        "slurm and run",
        "torchrun under run",
        "torchrun that slurm has begun again",
        "no number",
    ],
)
def test_attempts_of_one_launch_differ_and_so_do_launches(environ: dict[str, str], attempt: int, instance: str) -> None:
    assert attempt_of(AT | environ) == attempt
    assert instance_of(AT | environ) == instance
