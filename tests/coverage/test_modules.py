"""In whose forward an operation is made, in what mode, where a thread stands: by both recorders, out of the ring."""

import json
from pathlib import Path

import pytest

from ncclwatch.native import build
from tests.integration.launch import run_ranks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.mark.parametrize("native", ["0", "1"])
def test_the_module_and_its_mode_are_recorded_with_an_operation(tmp_path: Path, native: str):
    if native == "1":
        build.build()
    (rank,) = run_ranks("forwards.py", 1, tmp_path, NCCLWATCH_NATIVE=native)
    assert rank.code == 0, rank.err
    told = json.loads(rank.out.splitlines()[-1])
    # Two norms are alike, and the way to both is the same: which of them it was nobody can tell afterwards.
    assert told["modules"] == [
        ["model", "*", "Norm", "train", "grad"],
        ["model", "*", "Norm", "train", "no_grad"],
        ["model", "*", "Norm", "train", "inference_mode"],
    ]
    # Three passes of two norms each, the evaluation, the barrier outside of all, and the first norm of the last pass.
    assert told["ops"] == [1, 1, 2, 2, 1, 1, 3, 3, 0, 1]
    assert told["standing"] == ["model", "0.1.0", "Norm", "eval", ""]
    assert told["modes"] == [["model", "0.1.0", "Norm", "eval", ""], ["model", "0.0", "Norm", "train", ""]]
