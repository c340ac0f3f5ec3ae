"""What frames and names say of the work that others wait for."""

import pytest

from ncclwatch.contract.model.phases import Phase, phase_of_frame, phase_of_name

SITE = "/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("path", "function", "phase"),
    [
        (f"{SITE}/torch/_dynamo/convert_frame.py", "_compile", Phase.COMPILE),
        (f"{SITE}/torch/_inductor/async_compile.py", "wait", Phase.COMPILE),
        (f"{SITE}/triton/compiler/compiler.py", "compile", Phase.COMPILE),
        (f"{SITE}/torch/utils/cpp_extension.py", "load", Phase.COMPILE),
        (f"{SITE}/torch/_dynamo/eval_frame.py", "compile_wrapper", None),
        (f"{SITE}/torch/_inductor/output_code.py", "__call__", None),
        (f"{SITE}/torch/serialization.py", "_save", Phase.CHECKPOINT),
        (f"{SITE}/torch/serialization.py", "load", None),
        (f"{SITE}/torch/distributed/checkpoint/state_dict_saver.py", "save", Phase.CHECKPOINT),
        (f"{SITE}/torch/nn/modules/linear.py", "forward", None),
        ("/home/user/torch_serialization.py", "save", None),
    ],
)
def test_a_compiled_function_that_runs_is_no_compilation_and_a_sample_that_is_loaded_no_checkpoint(
    path: str, function: str, phase: Phase | None
) -> None:
    assert phase_of_frame(path, function) is phase


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("save_checkpoint", Phase.CHECKPOINT),
        ("Trainer._saveModel", Phase.CHECKPOINT),
        ("CKPTWriter", Phase.CHECKPOINT),
        ("validate", Phase.VALIDATION),
        ("Trainer.eval_epoch", Phase.VALIDATION),
        ("val", Phase.VALIDATION),
        ("Model.test_step", Phase.VALIDATION),
        ("compile_model", Phase.COMPILE),
        ("Validator.score", None),
        ("interval", None),
        ("contest", None),
        ("value_and_grad", None),
        ("train_one_epoch", Phase.STEP),
        ("rollout", None),
        ("", None),
    ],
)
def test_names_are_read_by_their_parts_and_only_the_innermost_counts(name: str, phase: Phase | None) -> None:
    assert phase_of_name(name) is phase
