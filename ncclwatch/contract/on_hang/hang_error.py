"""The exception raised in ranks when their job hangs, if its owner has asked for it."""

from typing import TYPE_CHECKING

from ncclwatch.contract.errors import NcclwatchError

if TYPE_CHECKING:  # `import ncclwatch` imports this, and stays light
    from ncclwatch.contract.on_hang.notice import HangVerdict


class HangError(NcclwatchError):
    """The job of this rank hangs. `verdict` is what the terminal shows of it, as fields."""

    def __init__(self, verdict: "HangVerdict") -> None:
        super().__init__(verdict)
        self.verdict = verdict

    def __str__(self) -> str:
        """Return the sentence and the advice."""
        said = self.verdict
        about = f"{said.cause}, {said.certainty}, incident {said.incident}"
        return " ".join(filter(None, (said.sentence, said.advice, f"({about})")))

    @property
    def sentence(self) -> str:
        """Return what is wrong, in one sentence."""
        return self.verdict.sentence

    @property
    def cause(self) -> str:
        """Return the name of the cause, such as "data_stall"."""
        return self.verdict.cause

    @property
    def job(self) -> str:
        """Return the name of the job."""
        return self.verdict.job

    @property
    def culprits(self) -> tuple[int, ...]:
        """Return the ranks that hold up the others."""
        return self.verdict.culprits
