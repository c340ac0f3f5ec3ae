"""A rank of torch's own in a job of 98,304: what the ring says of its groups is what torch says."""

import subprocess
from pathlib import Path

import pytest

from tests.integration.launch import PROGRAMS, environment
from tests.zoo.forking.torch_once import forked

pytestmark = pytest.mark.integration

CPU_MS_MAX = 60.0  # for a group of all ranks, of the thread that makes it; a quarter of that on a quiet machine


@pytest.mark.parametrize("world_size", [12_774, 98_304])
def test_the_groups_of_a_big_job_are_in_the_ring_whole(tmp_path: Path, world_size: int):
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": "1"}
    rank = subprocess.run(
        forked(PROGRAMS / "big_world.py", str(world_size)),
        env=environment(tmp_path, NCCLWATCH_JOB="test", **place), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    said, _, took_ms = rank.stdout.strip().partition(" ")
    assert said == "ok", rank.stderr
    assert float(took_ms) < CPU_MS_MAX
