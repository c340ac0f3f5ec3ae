"""Names the rank, host and line that hangs a PyTorch training job, within seconds.

    import ncclwatch
    ncclwatch.attach()

Importing this starts nothing and imports the standard library alone.
"""

import gc
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from ncclwatch.contract.on_hang.hang_error import HangError
from ncclwatch.contract.version import VERSION

if TYPE_CHECKING:
    import torch.distributed

    from ncclwatch.rank.remedies.random_states import RestoredRng

__version__ = VERSION
__all__ = ["HangError", "attach", "detach", "even_batches", "phase", "restore_rng_state", "step"]

Batch = TypeVar("Batch")


def attach(native: bool | str = "auto", *, on_hang: str = "", notes: bool = False) -> None:
    """Begin to record this rank's collectives, and make sure that a node agent watches them.

    Call it anywhere in the training script, before or after `init_process_group`; a second call
    does nothing. It never raises: what stands in the way is told in one warning, and training
    goes on. Forked children (DataLoader workers) are not ranks and record nothing.

    Settings are environment variables: NCCLWATCH_SERVER (URL of the server; without it port 8470 of
    MASTER_ADDR is tried), NCCLWATCH_JOB (name of the job), NCCLWATCH_DISABLE=1 (do nothing).

    `native` says which recorder is used: "auto" takes the native one where `ncclwatch build-native` has built
    it for this torch, and else as much of it as fits any torch; True warns where it has not, False takes the one in
    Python. They record the same.
    NCCLWATCH_NATIVE=0 or 1 overrides it.

    `on_hang` says what is done when the job hangs: "report" (the default), "capture", "raise", "abort", "restart" or
    "policy". NCCLWATCH_ON_HANG overrides it. With "raise", `HangError` is raised in the main thread, once for a hang,
    on ranks whose main thread runs Python or waits in Python; a thread that is blocked in native code, as in a
    collective of gloo or NCCL, cannot be reached.

    `notes=True` notes a critical verdict in the runs of Weights & Biases, MLflow and TensorBoard that the script has
    open. NCCLWATCH_NOTES=1 or 0 overrides it.
    """
    collects = gc.isenabled()
    gc.disable()  # what is imported stays; to look through all of torch's objects for it takes longer than the rest
    try:
        from ncclwatch.rank.attach import attach as begin

        begin(native, on_hang, notes)
    finally:
        if collects:
            gc.enable()


def detach() -> None:
    """Stop recording and restore every name of torch that `attach` replaced to the identical object.

    Does nothing when not attached. Whoever watches the job is told that this rank has detached.
    """
    from ncclwatch.rank.attach import detach as end

    end()


def step(number: int | None = None) -> None:
    """Mark the end of a training step. Without this, optimizer steps are counted.

    `number` sets the count of finished steps instead of adding one to it; below 0 is 0. Call it on each rank, from any
    thread. Does nothing when not attached; never raises.
    """
    from ncclwatch.rank.marks import step as mark

    mark(number)


def phase(name: str) -> AbstractContextManager[None]:
    """Mark a phase: `with ncclwatch.phase("validate"): ...`. Verdicts name it, and waits are judged by it.

    The first 100 characters of the name are kept. Phases may be nested: the innermost one counts, for the whole
    rank. What is raised inside goes through unchanged. Does nothing when not attached; raises nothing of its own.
    """
    from ncclwatch.rank.marks import phase as mark

    return mark(name)


def even_batches(
    loader: Iterable[Batch],
    bucket: Callable[[Batch], Hashable] | None = None,
    *,
    group: "torch.distributed.ProcessGroup | None" = None,
    every: int = 8,
) -> Generator[Batch, None, None]:
    """Yield the batches of a loader and end on all ranks together: `for batch in ncclwatch.even_batches(loader)`.

    Every rank gets exactly as many batches as the one with the fewest; what others have left is dropped. Nobody need
    know a length: each rank draws up to `every` batches ahead, and one all_reduce of 32 bytes for that many, in a gloo
    group of its own, runs while they are trained on. Works with any iterable, with worker processes that live on, with
    gradient accumulation, with and without `attach`. Without a process group, or with one rank, the loader is
    iterated over as it is.

    `bucket` names the data bucket of a batch, under which verdicts count it: `bucket=lambda batch: batch["ratio"]`.
    Without it, it is the shape of the batch's first tensor.

    All ranks of `group` (None: all ranks) have to run the loop, and to do so equally often. Loops may be nested, in
    one thread. A rank may leave early (`break`) if all do at the same batch; batches that were drawn ahead are lost,
    and where one rank leaves alone, the others end when it comes to its next loop.

    Raises what the loader raises, on its rank and after the batches that all still have; on the others
    `ncclwatch.rank.remedies.even_batches.LoaderFailedError` at the same batch; `NcclwatchError` where a loop goes on
    or begins after `destroy_process_group`; `ValueError` for `every` below 1.
    """
    from ncclwatch.rank.remedies import even_batches

    return even_batches.even_batches(loader, bucket, group, every)


def restore_rng_state(states: Sequence[object] | Mapping[str, object], *, rank: int | None = None) -> "RestoredRng":
    """Restore saved random states as far as they fit this run, and seed the devices for which there are none.

    `states` is a list with one state for each device, as `torch.cuda.get_rng_state_all()` returns it, or a dict as
    trainers save it, with any of "python", "numpy", "torch" and "torch_cuda" (the names that Accelerate and
    transformers use are known, too), and "world_size" if the program saved it.

    A device without a state, or with one of another size, is seeded by 63 bits of a SHA-256 over the saved states of
    all devices, the global rank (`rank`; by default that of torch.distributed, or RANK) and the device's index: the
    same resume gives the same numbers, and another rank or device others.

    Returns what was restored, seeded and left over; `str()` of it is one sentence for a log. Works without
    `attach()`. CUDA begins if there is any. Raises TypeError for anything else than a list or a dict.
    """
    from ncclwatch.rank.remedies.random_states import restore

    return restore(states, rank=rank)
