"""Marks what torchtitan's Trainer does: `mark(trainer)` before `trainer.train()`. torchtitan has no callbacks."""

from importlib.util import find_spec
from typing import TypeVar

from ncclwatch.integrations.missing import FrameworkMissing
from ncclwatch.integrations.phases import LOAD, SAVE, VALIDATE
from ncclwatch.integrations.wrapping import mark_phase, mark_step

if find_spec("torchtitan") is None:
    raise FrameworkMissing(__name__, "torchtitan", ImportError("No module named 'torchtitan'"))

Trainer = TypeVar("Trainer")


def mark(trainer: Trainer) -> Trainer:
    """Mark the steps, validations and checkpoints of one trainer; returns the trainer."""
    mark_step(trainer, "train_step", "step")
    mark_phase(getattr(trainer, "validator", None), "validate", VALIDATE)
    checkpointer = getattr(trainer, "checkpointer", None)
    mark_phase(checkpointer, "save", SAVE)
    mark_phase(checkpointer, "load", LOAD)
    return trainer
