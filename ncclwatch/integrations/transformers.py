"""Marks what the Trainer of transformers does: `Trainer(..., callbacks=[NcclwatchCallback()])`."""

from typing import Any

import ncclwatch
from ncclwatch.integrations.missing import FrameworkMissing
from ncclwatch.integrations.phases import SAVE, VALIDATE, Phases, warn_if_not_attached

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise FrameworkMissing(__name__, "transformers", error) from error


class NcclwatchCallback(TrainerCallback):
    """Marks evaluation, prediction, checkpoints and optimizer steps.

    The Trainer tells of the end of an evaluation and of a save, not of their beginnings: those are where it has
    decided for one (`control.should_evaluate`, `control.should_save`), or where a batch is predicted.
    """

    def __init__(self) -> None:
        self._phases = Phases()
        self._inside = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say so if nothing records this rank."""
        warn_if_not_attached("NcclwatchCallback")
        self._change("")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the optimizer steps so far, and what is done before the next one."""
        ncclwatch.step(state.global_step)
        self._expect(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """As after a step."""
        self._expect(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch of Trainer.evaluate() or Trainer.predict() that was called by hand."""
        if not self._inside:
            self._change(VALIDATE)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is over; a save may follow."""
        self._change(SAVE if control.should_save else "")

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """A prediction is over."""
        self._change("")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A save is over."""
        self._change("")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Whatever was expected is over: with save_strategy="best" an evaluation is not always followed by a save."""
        self._change("")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave nothing marked."""
        self._change("")

    def _expect(self, control: Any) -> None:
        self._change(VALIDATE if control.should_evaluate else SAVE if control.should_save else "")

    def _change(self, name: str) -> None:
        if name != self._inside:
            self._phases.clear()
            self._inside = name
            if name:
                self._phases.begin(name)
