"""Marks the reports of Ray Train's workers: `RunConfig(callbacks=[NcclwatchCallback()])`.

`ray.train.report` is a meeting of all workers, as a barrier is: while one is in it the others are waited for. The
callback lives in the controller; what it does in each worker is to mark that call. `ncclwatch.attach()` belongs into
the train function, or the driver runs under `ncclwatch run --inject`.
"""

import functools
from collections.abc import Callable
from typing import Any

import ncclwatch
from ncclwatch.integrations.missing import FrameworkMissing
from ncclwatch.integrations.phases import REPORT

try:
    from ray.train.v2._internal.execution.callback import WorkerGroupCallback
except ImportError as error:
    raise FrameworkMissing(__name__, "ray[train]", error) from error

_MARKED = "_ncclwatch_marked"


class NcclwatchCallback(WorkerGroupCallback):
    """Marks reports in every worker of a Ray Train run.

    By name, without an edit: RAY_TRAIN_CALLBACKS=ncclwatch.integrations.ray.NcclwatchCallback.
    """

    def after_execution_group_start(self, execution_group: Any) -> None:
        """Mark the reports of workers that have just begun; also of those that replace failed ones."""
        execution_group.execute(mark_reports)


def mark_reports() -> bool:
    """Mark, in this worker, each call of `ray.train.report` as a phase; once, however often it is called.

    Returns whether this version of Ray has the method that all reports go through.
    """
    try:
        from ray.train.v2._internal.execution.context import TrainContext
    except ImportError:  # another Ray: reports have no name then, and a verdict is right all the same
        return False
    original: Callable[..., Any] = TrainContext.report
    if not getattr(original, _MARKED, False):
        setattr(TrainContext, "report", _marked(original))  # noqa: B010 - the class is not typed
    return True


def _marked(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def report(*args: Any, **kwargs: Any) -> Any:
        with ncclwatch.phase(REPORT):
            return original(*args, **kwargs)

    setattr(report, _MARKED, True)
    return report
