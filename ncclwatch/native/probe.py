"""Checks that a torch side reads this torch's objects as they are, before anything is recorded with it.

What Python cannot hand to an op, a ReduceOp, is not checked.
"""

from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from ncclwatch.native.build import NativeError

_READ = {  # what read_tensor must say of a tensor: elements, on the host, without memory
    "a matrix": (lambda: torch.empty((3, 5)), (15, 1, 0)),
    "a scalar": (lambda: torch.empty((), dtype=torch.int64), (1, 1, 0)),
    "a part of a matrix": (lambda: torch.empty((4, 6), dtype=torch.bfloat16)[1:, ::2], (9, 1, 0)),
    "nothing": (lambda: torch.empty((0, 7), dtype=torch.bool), (0, 1, 0)),
    "a tensor without memory": (lambda: torch.empty((2, 2), device="meta"), (4, 0, 1)),
}


def check(module: ModuleType, torch_side: Path) -> None:
    """Raise `NativeError` if a torch side reads something else of this torch's objects than what they are."""
    ops = torch.ops.ncclwatch
    for what, (make, expected) in _READ.items():
        numel, _, *flags = ops.read_tensor(make())  # type: ignore[no-untyped-call]
        _compare(torch_side, what, (numel, *flags), expected)
    _compare(torch_side, "a group's rank and size", ops.read_group(dist.ProcessGroup(3, 7).boxed()), [3, 7])  # type: ignore[call-arg]
    work = _distributed_c10d._create_work_from_future(torch.futures.Future())  # type: ignore[attr-defined]
    _compare(torch_side, "a work's address", ops.read_work(work.boxed()), module.address_in(work))


def scalar_type(dtype: torch.dtype) -> int:
    """Return the number that torch's C++ has for a type of element."""
    number: int = torch.ops.ncclwatch.read_tensor(torch.empty(0, dtype=dtype, device="meta"))[1]
    return number


def _compare(torch_side: Path, what: str, read: object, expected: object) -> None:
    if read != expected:
        raise NativeError(
            f"{torch_side} was built for another torch than {torch.__version__}: of {what} it reads {read}, "
            f"and not {expected}. Run `ncclwatch build-native`"
        )
