"""Marks the steps that a loop with Accelerate logs: `Accelerator(log_with=NcclwatchTracker())`.

Accelerate has trackers and no callbacks: they hear of `accelerator.log(values, step=n)` and of nothing else. Phases are
marked by `with ncclwatch.phase("validate"):`, and saves are recorded without any mark.
"""

from typing import Any

import ncclwatch
from ncclwatch.integrations.missing import FrameworkMissing

try:
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise FrameworkMissing(__name__, "accelerate", error) from error


class NcclwatchTracker(GeneralTracker):
    """Marks the steps of this rank; it works on all ranks, and writes nothing anywhere."""

    name = "ncclwatch"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self) -> None:
        super().__init__()
        self._newest = 0

    @property
    def tracker(self) -> "NcclwatchTracker":
        """What `accelerator.get_tracker("ncclwatch")` unwraps."""
        return self

    def store_init_configuration(self, values: Any) -> None:
        """Nothing of a configuration is kept."""

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        """Mark a step. Values logged for an earlier one, as evaluations do, do not set the count back."""
        if step is not None and step > self._newest:
            self._newest = step
            ncclwatch.step(step)
