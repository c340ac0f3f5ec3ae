"""Names what a rank does while others wait (compile, checkpoint, validate), by marks, files and names.

Such work has a length of its own, far from that of a step, so each kind is waited for with patience of its own.
A wrong answer here changes only how long that is.
"""

import re
from enum import Enum
from functools import lru_cache


class Phase(str, Enum):
    """Kinds of work that ranks keep each other waiting with."""

    STEP = "step"
    PIPELINE = "pipeline"  # sends and receives between stages
    FIRST_USE = "first use of a group"  # its communicator is made
    STARTUP = "startup"  # the rendezvous, and groups that are being made
    COMPILE = "compile"
    CHECKPOINT = "checkpoint"
    VALIDATION = "validation"
    END_OF_EPOCH = "end of an epoch"
    OTHER = "other"  # the user has named it, and it is none of these


# Where the frames of a stack lie while torch compiles or saves. That a compiled function runs shows none of these.
_FILES = (
    (Phase.COMPILE, (
        "/torch/_dynamo/convert_frame.py", "/torch/_inductor/compile_fx.py", "/torch/_inductor/graph.py",
        "/torch/_inductor/async_compile.py", "/torch/_functorch/_aot_autograd/graph_compile.py",
        "/torch/utils/cpp_extension.py", "/triton/compiler/", "/triton/runtime/autotuner.py",
    )),
    (Phase.CHECKPOINT, ("/torch/distributed/checkpoint/", "/safetensors/torch.py")),
)  # fmt: skip
# Parts of the names that users give to functions and phases.
_WORDS = {
    Phase.CHECKPOINT: frozenset("save saves saving saver checkpoint checkpoints checkpointing ckpt snapshot".split()),
    Phase.VALIDATION: frozenset(
        "val valid validate validates validation validating eval evals evaluate evaluates evaluation evaluating "
        "evaluator test testing".split()
    ),
    Phase.COMPILE: frozenset("compile compiles compiling compilation jit autotune warmup".split()),
    Phase.STARTUP: frozenset("init setup startup".split()),
    Phase.STEP: frozenset("train training step steps fit epoch forward backward optimizer loop".split()),
}
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")


@lru_cache(maxsize=4096)
def phase_of_frame(path: str, function: str) -> Phase | None:
    """Return what a frame of a framework says of the work on its stack, None if nothing."""
    if path.endswith("/torch/serialization.py"):  # a data set may well load its samples by torch.load
        return Phase.CHECKPOINT if "save" in function else None
    return next((phase for phase, places in _FILES if any(place in path for place in places)), None)


@lru_cache(maxsize=4096)
def phase_of_name(name: str) -> Phase | None:
    """Return what the name of a function or of a phase says of the work, None if nothing.

    The innermost part of a qualified name counts: `Trainer.validate_model` validates, `Validator.step` steps.
    """
    parts = {part.lower() for part in _PART.findall(name.rpartition(".")[2])}
    return next((phase for phase, words in _WORDS.items() if parts & words), None)
