"""Notes whether the random states that are restored fit the devices of this run.

`torch.cuda.set_rng_state_all` takes one state for each device that was visible when they were saved. With fewer devices
now it raises "tuple index out of range"; with more, the others keep whatever they were seeded with, and nobody says so.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Sized

import torch

from ncclwatch.contract.ring import facts
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.where.call_sites import describe

Current = Callable[[], Recorder | None]
Tell = Callable[[str, str], None]  # (sentence, subject)
ALL, ONE = "torch.cuda.set_rng_state_all", "torch.cuda.set_rng_state"


def install(patches: Patches, current: Current, tell: Tell) -> None:
    """Patch what restores the random states of devices. The CPU has one state in every run: nothing to compare."""
    both = (torch.cuda.random, torch.cuda)
    patches.replace_everywhere(both, "set_rng_state", lambda f: _make_one(f, current, tell))
    patches.replace_everywhere(both, "set_rng_state_all", lambda f: _make_all(f, current, tell))


def _make_all(original: Callable[..., object], current: Current, tell: Tell) -> Callable[..., object]:
    @functools.wraps(original)
    def set_rng_state_all(*args: object, **kwargs: object) -> object:
        recorder = current()
        states = args[0] if args else kwargs.get("new_states")
        if recorder is not None and isinstance(states, Sized):  # a generator would be used up by looking
            guarded.attempt(recorder, _compare, recorder, tell, ALL, len(states), 2)
        return original(*args, **kwargs)

    return set_rng_state_all


def _make_one(original: Callable[..., object], current: Current, tell: Tell) -> Callable[..., object]:
    @functools.wraps(original)
    def set_rng_state(*args: object, **kwargs: object) -> object:
        recorder = current()
        index = _index(args[1] if len(args) > 1 else kwargs.get("device"))
        if recorder is not None and index is not None and index >= _present() > 0:
            guarded.attempt(recorder, _compare, recorder, tell, ONE, index + 1, 2)
        return original(*args, **kwargs)

    return set_rng_state


def _index(device: object) -> int | None:
    """Return the number of a device that is named by one; None for the current one."""
    if isinstance(device, torch.device):
        return device.index
    try:
        return torch.device(device).index if isinstance(device, str) else device if isinstance(device, int) else None
    except RuntimeError:  # torch says so itself in a moment
        return None


def _present() -> int:
    """Return how many devices this process has; 0: CUDA has not begun, and we do not begin it."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return len(torch.cuda.default_generators) or torch.cuda.device_count()


def _own() -> int:
    """Return this rank's own device, -1 if that is not known: device 0 may only mean that none was chosen yet."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return -1
    own = torch.cuda.current_device()
    return own if own > 0 or os.environ.get("LOCAL_RANK", "0") == "0" else -1


def _compare(recorder: Recorder, tell: Tell, call: str, saved: int, depth: int) -> None:
    """Note and tell where the states do not fit. `depth`: frames from here to the caller of torch."""
    present = _present()
    if saved == present or recorder.facts.known(facts.RNG):  # told already: `set_rng_state_all` calls the other
        return
    frame = recorder.sites.users_frame(sys._getframe(depth + 1))
    site = describe(frame.f_code, frame.f_lineno) if frame is not None else None
    if not present:
        return  # torch keeps the states until CUDA begins; without CUDA they are never used
    own = _own()
    recorder.facts.tell(
        facts.RNG, call=call, saved=saved, present=present, own=own, at_ns=time.monotonic_ns(),
        file=site.file if site else "", line=site.line if site else 0, function=site.function if site else "",
    )  # fmt: skip
    where = f" at {os.path.basename(site.file)}:{site.line}" if site is not None else ""
    if saved > present:
        tell(_too_many(call, where, saved, present), "rng")
    elif not 0 <= own < saved:
        tell(_too_few(call, where, saved, present), "rng")


def _world() -> str:
    size = os.environ.get("WORLD_SIZE", "")
    return f" (world size {size})" if size else ""


def _too_many(call: str, where: str, saved: int, present: int) -> str:
    return (
        f"{call}{where} is given the random states of {saved} devices, saved by a run that saw as many, and this run"
        f"{_world()} sees {present}: torch raises IndexError at state {present}. "
        f"ncclwatch.restore_rng_state(states) restores the {present} that fit; so does passing states[:{present}]."
    )


def _too_few(call: str, where: str, saved: int, present: int) -> str:
    left = f"device {saved}" if present == saved + 1 else f"devices {saved}-{present - 1}"
    return (
        f"{call}{where} is given the random states of {saved} devices, saved by a run that saw as many, and this run"
        f"{_world()} sees {present}: {left} keep{'s' if present == saved + 1 else ''} the random state of the start, "
        "and torch does not say so. ncclwatch.restore_rng_state(states) seeds the others reproducibly."
    )
