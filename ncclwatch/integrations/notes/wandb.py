"""Notes a verdict in the open run of Weights & Biases: an alert, a tag, and a paragraph in the run's notes."""

import sys

from ncclwatch.contract.on_hang.notice import HangVerdict
from ncclwatch.integrations.notes.words import appended, text, title

TAG_CHARS_MAX = 64  # W&B refuses longer ones


class WeightsAndBiases:
    """The run in `wandb.run`."""

    name = "Weights & Biases"

    def note(self, verdict: HangVerdict, step: int) -> None:
        """Alert whoever has turned alerts on, tag the run, and write into its notes."""
        wandb = sys.modules.get("wandb")
        run = getattr(wandb, "run", None)
        if wandb is None or run is None:
            return
        run.alert(title=title(verdict), text=text(verdict), level=wandb.AlertLevel.ERROR, wait_duration=0)
        run.tags = (*(run.tags or ()), f"hang:{verdict.cause}"[:TAG_CHARS_MAX])
        run.notes = appended(run.notes, verdict)
