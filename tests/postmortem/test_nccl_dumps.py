"""Dumps that NCCL's flight recorder wrote of real hangs, two seconds after the fault (torch 2.11, NCCL 2.28.9).

The programs are those of tests/gpu/programs; what is true of each stands beside it there. In `nccl_2_28` are the
dumps by rank, as JSON; they are written as the pickles that they were.
"""

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest

from tests.postmortem.analysis import brief

DUMPS = Path(__file__).with_name("nccl_2_28")
AFTER_NS = 2 * 10**9
# (severity, certainty, cause, culprits); a dump of a healthy moment and one of a hang that has just begun look alike.
SAID = {
    "batch_skipped": [("critical", "PROVEN", "divergent_control_flow", [1])],
    "endless_kernel": [],  # all have issued all
    "graph_replayed_once_less": [("info", "LATE", "straggler", [0, 2])],  # who waits for whom, and no more
    "group_for_some": [("info", "LATE", "straggler", [0, 2])],  # a new_group is not in a dump
    "host_stalled": [("info", "LATE", "straggler", [1])],
    "late_for_the_first": [],  # no operation has begun
    "layer_left_out": [],  # rank 2 is a step behind
    "microbatch_left_out": [("info", "LATE", "straggler", [1])],
    "other_root": [],  # a dump does not tell the root
    "skipped_all_reduce": [("critical", "PROVEN", "divergent_control_flow", [2])],
}


def written(name: str, directory: Path) -> Path:
    """Write the dumps of a job into a directory, as torch does."""
    dumps = json.loads(gzip.decompress((DUMPS / f"{name}.json.gz").read_bytes()))
    newest_ns = max((entry["time_created_ns"] for dump in dumps.values() for entry in dump["entries"]), default=0)
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            entry["process_group"] = tuple(entry["process_group"])
        path = directory / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(dump))
        os.utime(path, ns=(newest_ns + AFTER_NS,) * 2)
    return directory


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_dumps_of_nccl(name: str, tmp_path: Path):
    assert [each[:4] for each in brief(written(name, tmp_path))] == SAID[name]
