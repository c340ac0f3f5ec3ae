"""Marks what Lightning's Trainer and Fabric do: `Trainer(callbacks=[NcclwatchCallback()])`.

Lightning finds both callbacks by the entry points of this package, too, so that a job under `ncclwatch run --inject`
has its phases marked although nobody edited it. Without `attach()` they do nothing.
"""

from typing import Any

import ncclwatch
from ncclwatch.integrations.missing import FrameworkMissing
from ncclwatch.integrations.phases import PREDICT, SANITY_CHECK, TEST, VALIDATE, Phases, warn_if_not_attached

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise FrameworkMissing(__name__, "lightning", error) from error


class NcclwatchCallback(Callback):
    """Marks validation, test, prediction and optimizer steps of a `lightning.pytorch.Trainer`."""

    def __init__(self, *, quiet: bool = False) -> None:
        """`quiet`: do not say that nobody has attached."""
        self._phases = Phases()
        self._quiet = quiet

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Say so if nothing records this rank."""
        if not self._quiet:
            warn_if_not_attached("NcclwatchCallback")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Mark how many optimizer steps there have been; micro-batches of one step count once."""
        if next(each for each in trainer.callbacks if isinstance(each, NcclwatchCallback)) is self:
            ncclwatch.step(trainer.global_step)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """The few batches of validation before training."""
        self._phases.begin(SANITY_CHECK)

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """They are over."""
        self._phases.end(SANITY_CHECK)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation, in fit() or by itself."""
        self._phases.begin(VALIDATE)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """It is over."""
        self._phases.end(VALIDATE)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Trainer.test()."""
        self._phases.begin(TEST)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """It is over."""
        self._phases.end(TEST)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Trainer.predict()."""
        self._phases.begin(PREDICT)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """It is over."""
        self._phases.end(PREDICT)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The loops are left, and nobody tells the ends of their phases."""
        self._phases.clear()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave nothing marked."""
        self._phases.clear()


class NcclwatchFabricCallback:
    """Marks what a loop with Fabric tells its callbacks: `Fabric(callbacks=[NcclwatchFabricCallback()])`.

    Fabric itself tells of optimizer steps only, which attach() counts already. For phases the loop calls
    `fabric.call("on_validation_start")` and `fabric.call("on_validation_end")`, or uses
    `with ncclwatch.phase("validate")`.
    """

    def __init__(self) -> None:
        self._phases = Phases()

    def on_validation_start(self, *_: Any, **__: Any) -> None:
        """What a loop calls before it validates."""
        self._phases.begin(VALIDATE)

    def on_validation_end(self, *_: Any, **__: Any) -> None:
        """It is over."""
        self._phases.end(VALIDATE)

    def on_validation_epoch_start(self, *_: Any, **__: Any) -> None:
        """The name that Lightning's own example of a trainer with Fabric uses."""
        self._phases.begin(VALIDATE)

    def on_validation_epoch_end(self, *_: Any, **__: Any) -> None:
        """It is over."""
        self._phases.end(VALIDATE)


def trainer_callbacks() -> list[Callback]:
    """Return what every Trainer gets: the entry point `lightning.pytorch.callbacks_factory`."""
    return [NcclwatchCallback(quiet=True)]


def fabric_callbacks() -> list[NcclwatchFabricCallback]:
    """Return what every Fabric gets: the entry point `lightning.fabric.callbacks_factory`."""
    return [NcclwatchFabricCallback()]
