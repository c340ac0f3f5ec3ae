"""Says which operations of torch's `c10d` library move data, and how the arguments of each are read."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from ncclwatch.contract.model.rank import Op
from ncclwatch.contract.ring.layout import DTYPES

DTYPE_CODES = {getattr(torch, name): code for code, name in enumerate(DTYPES) if hasattr(torch, name)}
OTHER_DTYPE = len(DTYPES) - 1


class Kernel(NamedTuple):
    """How the arguments of one c10d op are read."""

    op: Op
    sized_by: int  # position of the tensors whose size members must agree on; -1: none need to
    group: int
    root: int = -1
    reduce_op: int = -1
    async_op: int = -1


# Positions follow the schemas of torch 2.4 to 2.13; `_positions` checks them at install.
_KERNELS = {
    "allreduce_": ("tensors", Op.ALL_REDUCE),
    "allreduce_coalesced_": ("tensors", Op.ALL_REDUCE),
    "broadcast_": ("tensors", Op.BROADCAST),
    "allgather_": ("input_tensors", Op.ALL_GATHER),
    "_allgather_base_": ("input_tensor", Op.ALL_GATHER),
    "allgather_coalesced_": ("input_list", Op.ALL_GATHER),
    "allgather_into_tensor_coalesced_": ("inputs", Op.ALL_GATHER),
    "reduce_": ("tensors", Op.REDUCE),
    "gather_": ("input_tensors", Op.GATHER),
    "scatter_": ("output_tensors", Op.SCATTER),
    "reduce_scatter_": ("output_tensors", Op.REDUCE_SCATTER),
    "_reduce_scatter_base_": ("output_tensor", Op.REDUCE_SCATTER),
    "reduce_scatter_tensor_coalesced_": ("outputs", Op.REDUCE_SCATTER),
    "alltoall_": ("", Op.ALL_TO_ALL),
    "alltoall_base_": ("", Op.ALL_TO_ALL),
    "barrier": ("", Op.BARRIER),
    "monitored_barrier_": ("", Op.MONITORED_BARRIER),
    "send": ("", Op.SEND),
    "recv_": ("", Op.RECV),
    "recv_any_source_": ("", Op.RECV),
}
_PEERS = ("root_rank", "dst", "src")


def specs() -> "Iterable[tuple[str, torch._ops.OpOverload, Kernel]]":
    """Yield the c10d ops of this torch that move data, and how their arguments are read."""
    for name, (sized_by, op) in _KERNELS.items():
        overload = getattr(getattr(torch.ops.c10d, name, None), "default", None)
        if overload is not None:
            yield name, overload, _positions(overload, sized_by, op)


def _positions(overload: "torch._ops.OpOverload", sized_by: str, op: Op) -> Kernel:
    names = [argument.name for argument in overload._schema.arguments]
    return Kernel(
        op=op,
        sized_by=names.index(sized_by) if sized_by in names else -1,
        group=names.index("process_group"),
        root=next((names.index(name) for name in _PEERS if name in names), -1),
        reduce_op=names.index("reduce_op") if "reduce_op" in names else -1,
        async_op=names.index("async_op") if "async_op" in names else -1,
    )
