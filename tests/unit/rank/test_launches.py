"""How often a launcher has begun a job again, and which launch that is."""

import pytest

from ncclwatch.rank import identity

AT = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "attempt", "instance"),
    [
        ({}, 0, "node0:29500/"),
        ({"TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "2"}, 2, "node0:29500/r"),
        ({"SLURM_RESTART_COUNT": "1"}, 1, "node0:29500/"),
        (
            {"TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "0", "SLURM_RESTART_COUNT": "1"},
            0,
            "node0:29500/r#1",
        ),
        ({"TORCHELASTIC_RESTART_COUNT": "many"}, 0, "node0:29500/"),
    ],
    ids=["first", "torchrun", "slurm", "torchrun that slurm has begun again", "no number"],
)
def test_attempts_of_one_launch_differ_and_so_do_launches(environ: dict[str, str], attempt: int, instance: str) -> None:
    assert identity.attempt(AT | environ) == attempt
    assert identity.instance(AT | environ) == instance
