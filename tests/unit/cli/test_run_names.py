"""The launchers of several nodes give their job one name."""

import pytest

from ncclwatch.cli.running.names import name_of

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
