"""Counts how many bytes a save will write at least, by its tensors, before the first one is written.

Neither torch.save nor safetensors packs what it writes, so the file is no smaller than its tensors. What is not looked
into (tensors of other classes, modules, objects that pickle themselves) only makes it larger. Nothing here waits for a
device.
"""

import io

import torch

LOOKS_MAX = 20_000  # at values in one state; what lies beyond is not counted
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a class made from these may be written in another way
_RAW_FILES = (io.FileIO, io.BufferedWriter, io.BufferedRandom)  # others may pack


def least_bytes(state: object, *, storages: bool) -> int:
    """Return the bytes of the tensors in a state, each counted once; 0 if it holds none that is understood.

    `storages`: whole storages are written, as torch.save does, and not only what the tensors show of them.
    """
    seen: dict[int, int] = {}
    waiting, looks = [state], 0
    while waiting and looks < LOOKS_MAX:
        value = waiting.pop()
        looks += 1
        if isinstance(value, torch.Tensor) and type(value) in _PLAIN:
            key, count = _of_tensor(value, storages=storages)
            seen[key] = count
        elif isinstance(value, dict):
            waiting += dict.values(value)  # whatever its class makes of reading it
        elif isinstance(value, list | tuple) and type(value) in (list, tuple):
            waiting += value
        elif isinstance(value, bytes | bytearray):
            seen[id(value)] = len(value)
    return sum(seen.values())


def is_written_as_it_is(target: object) -> bool:
    """Say whether the bytes given to a target are those of its file: an open file may pack them, a path does not."""
    return not hasattr(target, "write") or type(target) in _RAW_FILES


def _of_tensor(tensor: torch.Tensor, *, storages: bool) -> tuple[int, int]:
    """Return what tells a tensor (or its storage) from others, and its bytes."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return id(tensor), 0
    if not storages:
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage._cdata, storage.nbytes()
