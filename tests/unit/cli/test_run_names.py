"""The launchers of several nodes give their job one name."""

import pytest

from ncclwatch.cli.running.names import is_part, name_of
from ncclwatch.contract.network import tokens

SERVER = "http://head:8470"
TWO = "torchrun --nnodes 2 --nproc-per-node 8 --node-rank {} "


@pytest.mark.parametrize(
    ("command", "environ", "name"),
    [
        (TWO + "--master-addr node0 --master-port 29511 train.py", {}, "node0-29511"),
        (TWO + "--master_addr=node0 train.py --master-addr mine", {}, "node0-29500"),
        (TWO + "--rdzv-id=run7 --rdzv-endpoint node0:29400 train.py", {}, "run7"),
        (TWO + "--rdzv-id none --rdzv-endpoint=node0:29400 train.py", {}, "node0-29400"),
        ("torchrun train.py --node-rank {}", {"PET_NNODES": "2", "PET_RDZV_ID": "run8"}, "run8"),
        ("srun python train.py {}", {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}, "slurm-7.1"),
        (TWO + "train.py", {"NCCLWATCH_JOB": "team-a/run"}, "team-a/run"),
    ],
)
def test_it_comes_from_what_they_share(command: str, environ: dict[str, str], name: str) -> None:
    assert {name_of(command.format(rank).split(), SERVER, environ) for rank in (0, 1)} == {name}


@pytest.mark.parametrize(
    ("command", "server"),
    [("torchrun --nproc-per-node 8 train.py", SERVER), (TWO.format(0) + "--rdzv-id run7 train.py", ""),
     ("python train.py --nnodes 2", SERVER), ("torchrun --nnodes=1:1 train.py", SERVER)],
)  # fmt: skip
def test_on_one_node_each_run_has_a_name_of_its_own(command: str, server: str) -> None:
    assert name_of(command.split(), server, {}).startswith("train-")


@pytest.mark.parametrize(
    ("command", "environ", "part"),
    [
        (TWO.format(0) + "train.py", {}, True),
        ("torchrun --nnodes=1:4 train.py", {}, True),
        ("torchrun train.py", {"PET_NNODES": "2"}, True),
        ("torchrun --standalone --nproc-per-node 8 train.py", {"SLURM_NNODES": "2"}, False),
        ("python train.py", {"SLURM_STEP_NUM_TASKS": "8"}, True),
        ("python train.py", {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NNODES": "1"}, False),
        ("python train.py", {"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ("/usr/bin/srun python train.py", {"SLURM_JOB_NUM_NODES": "2"}, True),
        ("srun python train.py", {"SLURM_NNODES": "1"}, False),
        ("mpirun -np 16 --hostfile hosts python train.py", {}, True),
        ("mpirun -np 8 python train.py", {}, False),
        ("python train.py --nnodes 2", {}, False),
    ],
)
def test_a_run_knows_whether_it_starts_the_whole_job(command: str, environ: dict[str, str], part: bool) -> None:
    assert is_part(command.split(), environ) is part


@pytest.mark.parametrize(
    ("environ", "may"),
    [
        ({}, True),
        ({"NCCLWATCH_AGENT_TOKEN": "a" * 20}, False),
        ({"NCCLWATCH_AGENT_TOKEN_FILE": "/run/token"}, False),
        ({"NCCLWATCH_AGENT_TOKEN": "a" * 20, "NCCLWATCH_VIEWER_TOKEN": "b" * 20}, True),
        ({"NCCLWATCH_TOKEN_FILE": "/run/token"}, True),
    ],
)
def test_a_token_for_agents_alone_reads_nothing(environ: dict[str, str], may: bool) -> None:
    assert tokens.may_read(environ) is may
