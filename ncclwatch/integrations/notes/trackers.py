"""The experiment trackers in whose open runs verdicts are noted."""

from typing import Protocol

from ncclwatch.contract.on_hang.notice import HangVerdict
from ncclwatch.integrations.notes.mlflow import MLflow
from ncclwatch.integrations.notes.tensorboard import TensorBoard
from ncclwatch.integrations.notes.wandb import WeightsAndBiases


class Tracker(Protocol):
    """Notes a verdict. Called in a thread of its own, which training never waits for; an error becomes one warning."""

    name: str  # what people call it

    def note(self, verdict: HangVerdict, step: int) -> None:
        """Note a verdict in the runs that the script has open, if any. `step`: finished training steps."""


_TRACKERS: list[Tracker] = [WeightsAndBiases(), MLflow(), TensorBoard()]


def all_trackers() -> tuple[Tracker, ...]:
    """Return those that are known."""
    return tuple(_TRACKERS)


def add(tracker: Tracker) -> None:
    """Note verdicts in the runs of another tracker as well."""
    _TRACKERS.append(tracker)
