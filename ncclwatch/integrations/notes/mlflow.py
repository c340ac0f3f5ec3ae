"""Notes a verdict in the active run of MLflow: a tag, and a paragraph in the run's description."""

import sys
from typing import Any

from ncclwatch.contract.on_hang.notice import HangVerdict
from ncclwatch.integrations.notes.words import LABEL, appended, text

DESCRIPTION = "mlflow.note.content"  # the tag that MLflow's pages show as description


class MLflow:
    """The run that the script has begun with `mlflow.start_run()`, in any thread."""

    name = "MLflow"

    def note(self, verdict: HangVerdict, step: int) -> None:
        """Tag the run, and write into its description."""
        mlflow = sys.modules.get("mlflow")
        run = _active_run(mlflow) if mlflow is not None else None
        if mlflow is None or run is None:
            return
        client = mlflow.MlflowClient()
        tags = client.get_run(run.info.run_id).data.tags
        client.set_tag(run.info.run_id, LABEL, text(verdict))
        client.set_tag(run.info.run_id, DESCRIPTION, appended(tags.get(DESCRIPTION), verdict))


def _active_run(mlflow: Any) -> Any:
    """Return the run that is active in some thread, None for none. `mlflow.active_run` knows that of its own thread."""
    in_any = getattr(sys.modules.get("mlflow.tracking.fluent"), "_get_latest_active_run", None)
    return mlflow.active_run() if in_any is None else in_any()  # older versions have one for all threads
