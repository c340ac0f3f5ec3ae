"""Marks what a DeepSpeed engine does: `mark(engine)` after `deepspeed.initialize`. DeepSpeed has no callbacks."""

from importlib.util import find_spec
from typing import TypeVar

from ncclwatch.integrations.missing import FrameworkMissing
from ncclwatch.integrations.phases import LOAD, SAVE, VALIDATE
from ncclwatch.integrations.wrapping import mark_phase, mark_step

if find_spec("deepspeed") is None:
    raise FrameworkMissing(__name__, "deepspeed", ImportError("No module named 'deepspeed'"))

Engine = TypeVar("Engine")


def mark(engine: Engine) -> Engine:
    """Mark the steps, checkpoints and evaluated batches of one engine; returns the engine.

    A step is one of the optimizer: micro-batches that are accumulated count once (`engine.global_steps`).
    """
    mark_step(engine, "step", "global_steps")
    mark_step(engine, "train_batch", "global_steps")  # of a pipeline engine
    mark_phase(engine, "eval_batch", VALIDATE)
    mark_phase(engine, "save_checkpoint", SAVE)
    mark_phase(engine, "save_16bit_model", SAVE)
    mark_phase(engine, "load_checkpoint", LOAD)
    return engine
