"""Has the hot path in C record operations and waits, where no torch side fits, and does for it what is rare.

`ncclwatch/native/sources/hot_issue.h` and `hot_works.h` are the twins of the kernels and waits of `collectives.py`, and
record the same. They are called where those would be; what goes wrong in them is settled here, as the twins do.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import OPS, REDUCE_OPS
from ncclwatch.rank import torch_versions
from ncclwatch.rank.operations import ALL_GATHER, ALL_REDUCE, COLLECTIVE, Group, Issued
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.c10d_ops import DTYPE_CODES, OTHER_DTYPE, Kernel
from ncclwatch.rank.patches.chosen_device import note_used
from ncclwatch.rank.patches.groups import group_of
from ncclwatch.rank.recorder import Recorder

Current = Callable[[], Recorder | None]


def make_kernel(
    overload: "torch._ops.OpOverload",
    after: "torch._C.DispatchKeySet",
    spec: Kernel,
    current: Current,
    hot: ModuleType,
) -> Callable[..., object]:
    """Return the kernel of one c10d op."""
    code, has_size = OPS.index(spec.op), spec.op not in (Op.BARRIER, Op.MONITORED_BARRIER)
    numbers = (
        code, spec.sized_by, spec.group, spec.root, spec.reduce_op, spec.async_op, has_size, spec.op.is_p2p,
        code != ALL_GATHER, code == ALL_REDUCE, COLLECTIVE, len(REDUCE_OPS) - 1, OTHER_DTYPE,
    )  # fmt: skip
    asked = (c10d.ProcessGroup.unbox, group_of, torch_versions.reduce_code, DTYPE_CODES, note_used, _record, Issued)
    refused = _refused if overload._schema.returns else _over
    around = (
        current, overload._handle.redispatch_boxed, after, torch.ScriptObject, c10d.Work.unbox, _missed, refused, _left,
    )  # fmt: skip
    kernel: Callable[..., object] = hot.make_kernel(numbers, asked, around)
    return kernel


def make_wait(original: Callable[..., object], current: Current, hot: ModuleType) -> Callable[..., object]:
    """Return Work.wait, watched."""
    wait: Callable[..., object] = hot.make_hot_wait(original, current, _settle)
    return wait


def make_wait_tensor(
    overload: "torch._ops.OpOverload", after: "torch._C.DispatchKeySet", current: Current, hot: ModuleType
) -> Callable[..., object]:
    """Return the kernel of the wait of functional collectives."""
    kernel: Callable[..., object] = hot.make_hot_wait_tensor(overload._handle.redispatch_boxed, current, _settle, after)
    return kernel


# -- what C leaves to Python -------------------------------------------------------------------------------


def _record(  # noqa: PLR0913 - what C has read of the arguments, one by one
    recorder: Recorder,
    group: Group,
    op: int,
    numel: int,
    signature: tuple[int, int, int],
    site: int,
    in_order: bool,
    on_host: bool,
) -> tuple[Issued, bytes] | None:
    """Record an operation between two ranks, or a thread's first."""
    issued = None
    try:
        issued = recorder.issue(group, op, numel, signature, site, in_order)
        issued.on_host = on_host
        return issued, recorder.enter(WaitKind.COLLECTIVE, site, issued)
    except BaseException:
        guarded.miss(recorder, issued)
        return None


# Each is given what went wrong, and raises again what is the program's.


def _settle(recorder: Recorder, error: BaseException) -> None:
    try:
        raise error
    except BaseException:
        guarded.count_gap(recorder)


def _missed(recorder: Recorder, error: BaseException) -> None:
    try:
        raise error
    except BaseException:
        guarded.miss(recorder, None)


def _left(recorder: Recorder, issued: Issued, outer: bytes, error: BaseException) -> None:
    """Settle what went wrong behind an operation that its backend has taken."""
    try:
        raise error
    except BaseException:
        guarded.leave(recorder, outer)
        guarded.count_gap(recorder)


def _refused(recorder: Recorder, issued: Issued, outer: bytes, error: BaseException) -> Any:
    """Take back what a backend has refused, and raise what it said."""
    try:
        raise error
    except BaseException:
        guarded.leave(recorder, outer)
        guarded.attempt(recorder, recorder.refuse, issued)
        raise


def _over(recorder: Recorder, issued: Issued, outer: bytes, error: BaseException) -> Any:
    """Complete an operation that has no work: its exception ends it."""
    try:
        raise error
    except BaseException:
        guarded.leave(recorder, outer)
        guarded.attempt(recorder, recorder.track, issued, None)
        raise
