"""Names the rank, host and line that hangs a PyTorch training job, within seconds.

    import ncclwatch
    ncclwatch.attach()

Importing this starts nothing and imports the standard library alone.
"""

from contextlib import AbstractContextManager

from ncclwatch.contract.version import VERSION

__version__ = VERSION
__all__ = ["attach", "detach", "phase", "step"]


def attach(native: bool | str = "auto") -> None:
    """Begin to record this rank's collectives, and make sure that a node agent watches them.

    Call it anywhere in the training script, before or after `init_process_group`; a second call
    does nothing. It never raises: what stands in the way is told in one warning, and training
    goes on. Forked children (DataLoader workers) are not ranks and record nothing.

    Settings are environment variables: NCCLWATCH_SERVER (URL of the server; without it port 8470 of
    MASTER_ADDR is tried), NCCLWATCH_JOB (name of the job), NCCLWATCH_DISABLE=1 (do nothing).

    `native` says which recorder is used: "auto" takes the native one where `ncclwatch build-native` has built
    it for this torch, True warns where it has not, False takes the one in Python. They record the same.
    NCCLWATCH_NATIVE=0 or 1 overrides it.
    """
    from ncclwatch.rank.attach import attach as begin

    begin(native)


def detach() -> None:
    """Stop recording and restore every name of torch that `attach` replaced to the identical object."""
    from ncclwatch.rank.attach import detach as end

    end()


def step(number: int | None = None) -> None:
    """Mark the end of a training step. Without this, optimizer steps are counted.

    `number` sets the count instead of adding one to it. Does nothing when not attached; never raises.
    """
    from ncclwatch.rank.marks import step as mark

    mark(number)


def phase(name: str) -> AbstractContextManager[None]:
    """Mark a phase: `with ncclwatch.phase("validate"): ...`. Verdicts name it, and waits are judged by it.

    Does nothing when not attached.
    """
    from ncclwatch.rank.marks import phase as mark

    return mark(name)
