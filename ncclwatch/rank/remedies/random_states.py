"""Restores random states that another number of devices or ranks has saved.

Those that fit are restored; every other device gets a seed that follows from what was saved, so that two resumes
from one checkpoint draw the same numbers. See `ncclwatch.restore_rng_state`.
"""

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# What trainers call the states: our word first, then those of transformers, Accelerate and others.
_PYTHON = ("python", "random", "random_state", "python_rng_state")
_NUMPY = ("numpy", "numpy_random_seed", "numpy_rng_state", "np")
_TORCH = ("torch", "cpu", "torch_manual_seed", "torch_rng_state")
_CUDA = ("torch_cuda", "cuda", "torch_cuda_manual_seed", "cuda_rng_state", "cuda_rng_state_all")
_WORLD = ("world_size",)
_DOMAIN = b"ncclwatch.restore_rng_state 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredRng:
    """What `restore_rng_state` did."""

    restored: tuple[str, ...]  # "python", "numpy", "torch", "cuda:0"...
    seeded: tuple[tuple[str, int], ...]  # devices that had no state that fits, and their new seeds
    left_over: int  # states of devices that this run does not have
    failed: tuple[tuple[str, str], ...] = ()  # (what, why): kept as it was
    saved_world_size: int = 0  # 0: not saved
    world_size: int = 0  # 0: unknown

    def __str__(self) -> str:
        parts = [f"restored the random states of {', '.join(self.restored)}" if self.restored else "restored none"]
        if self.seeded:
            parts.append(f"seeded {', '.join(f'{name} with {seed}' for name, seed in self.seeded)}")
        if self.left_over:
            parts.append(f"left {self.left_over} over, of devices that this run does not have")
        parts += [f"{name} stays as it is: {why}" for name, why in self.failed]
        if self.saved_world_size and self.world_size and self.saved_world_size != self.world_size:
            parts.append(f"saved by {self.saved_world_size} ranks, resumed by {self.world_size}")
        return "; ".join(parts)


def restore(states: Sequence[object] | Mapping[str, object], *, rank: int | None) -> RestoredRng:
    """Restore what fits and seed the rest. See `ncclwatch.restore_rng_state`."""
    if isinstance(states, Mapping):
        found: Mapping[str, object] = states
    elif isinstance(states, Sequence) and not isinstance(states, str | bytes):
        found = {_CUDA[0]: states}
    else:
        raise TypeError(
            f"restore_rng_state takes a list of device states or a dict of states, not {type(states).__name__}"
        )
    restored: list[str] = []
    failed: list[tuple[str, str]] = []
    for names, name, setter in _HOST:
        state = _first(found, names)
        if state is None:
            continue
        trouble = _attempt(setter, state)
        restored += [name] if not trouble else []
        failed += [(name, trouble)] if trouble else []
    saved = _device_states(_first(found, _CUDA))
    here = rank if rank is not None else _rank()
    on_devices, seeded = _restore_devices(saved, here) if saved is not None else ([], [])
    present = torch.cuda.device_count()
    world = _first(found, _WORLD)
    return RestoredRng(
        restored=(*restored, *on_devices),
        seeded=tuple(seeded),
        left_over=sum(index >= present for index in saved or ()),
        failed=tuple(failed),
        saved_world_size=world if isinstance(world, int) else 0,
        world_size=_world_size(),
    )


def _restore_devices(saved: Mapping[int, object], rank: int) -> tuple[list[str], list[tuple[str, int]]]:
    """Set the state of each device of this process; returns the restored ones, and the others with their seeds."""
    count = torch.cuda.device_count()
    if count:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    restored, seeded = [], []
    for index in range(count):
        name, generator = f"cuda:{index}", torch.cuda.default_generators[index]
        if index in saved and not _attempt(generator.set_state, saved[index]):
            restored.append(name)
            continue
        seed = seed_of(tuple(saved.values()), rank, index)
        generator.manual_seed(seed)
        seeded.append((name, seed))
    return restored, seeded


def seed_of(saved: Sequence[object], rank: int, device: int) -> int:
    """Return the seed of a device for which no state was saved: 63 bits that follow from all that were."""
    digest = hashlib.sha256(_DOMAIN)
    for state in saved:
        digest.update(_bytes_of(state))
    digest.update(f"rank {rank} device {device}".encode())
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def _bytes_of(state: object) -> bytes:
    if not isinstance(state, torch.Tensor):
        return repr(state).encode()
    return bytes(state.cpu().contiguous().view(torch.uint8).flatten().tolist())


def _device_states(found: object) -> dict[int, object] | None:
    """Return the states by device. One that is no list is of the device that its rank used: the current one."""
    if isinstance(found, torch.Tensor) and found.dim() <= 1:
        return {torch.cuda.current_device() if torch.cuda.device_count() else 0: found}
    return dict(enumerate(found)) if isinstance(found, Iterable) else None


def _first(found: Mapping[str, object], names: Sequence[str]) -> object:
    return next((found[name] for name in names if found.get(name) is not None), None)


def _attempt(setter: Callable[[Any], object], state: object) -> str:
    """Set a state; returns why it cannot be one, "" if it could."""
    try:
        setter(state)
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _set_python(state: Any) -> None:
    version, numbers, gauss = state
    random.setstate((version, tuple(numbers), gauss))  # JSON and others make lists of tuples


def _set_numpy(state: Any) -> None:
    import numpy  # only who saved a state of numpy needs it

    numpy.random.set_state(state)


def _set_torch(state: Any) -> None:
    torch.random.set_rng_state(state)


_HOST: tuple[tuple[Sequence[str], str, Callable[[Any], None]], ...] = (
    (_PYTHON, "python", _set_python),
    (_NUMPY, "numpy", _set_numpy),
    (_TORCH, "torch", _set_torch),
)


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    said = os.environ.get("RANK", "0")
    return int(said) if said.isdigit() else 0


def _world_size() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    said = os.environ.get("WORLD_SIZE", "0")
    return int(said) if said.isdigit() else 0
