"""Says that torch.distributed.rpc is not watched, when a program begins to use it: a hang in it is silent otherwise."""

import functools
import sys
from collections.abc import Callable

from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder

NOT_SEEN = (
    "calls of torch.distributed.rpc are not recorded: a rank that waits for the answer of another one is not seen to "
    "do so, and a hang in which all wait like that is not told. Collectives and sends are watched as ever."
)


def install(patches: Patches, current: Callable[[], Recorder | None], warn: Callable[[str, str], None]) -> None:
    """Patch what begins RPC, where torch has it."""
    rpc = sys.modules.get("torch.distributed.rpc")  # imported by torch itself, in a build that has it
    if rpc is not None:
        patches.replace(rpc, "init_rpc", lambda original: _make_init(original, current, warn))


def _make_init(
    original: Callable[..., object], current: Callable[[], Recorder | None], warn: Callable[[str, str], None]
) -> Callable[..., object]:
    @functools.wraps(original)
    def init_rpc(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is not None:
            warn(NOT_SEEN, "rpc")
        return original(*args, **kwargs)

    return init_rpc
