"""Says what an operation is, by the name and the sizes that a recorder wrote down.

Only what the members of a collective must have in common goes into a signature: a ragged all_gather,
an all_to_all and the two sides of a scatter are as healthy as they differ.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from ncclwatch.contract.model.rank import Op

_OPS = {
    "all_reduce": Op.ALL_REDUCE, "all_reduce_sparse": Op.ALL_REDUCE, "allreduce_coalesced": Op.ALL_REDUCE,
    "all_reduce_barrier": Op.BARRIER, "barrier": Op.BARRIER,
    "broadcast": Op.BROADCAST, "_broadcast_oop": Op.BROADCAST,
    "reduce": Op.REDUCE, "_reduce_oop": Op.REDUCE,
    "all_gather": Op.ALL_GATHER, "all_gather_v": Op.ALL_GATHER, "all_gather_single": Op.ALL_GATHER,
    "_all_gather_base": Op.ALL_GATHER, "all_gather_into_tensor_coalesced": Op.ALL_GATHER,
    "ALLGATHER_coalesced": Op.ALL_GATHER,
    "reduce_scatter": Op.REDUCE_SCATTER, "reduce_scatter_v": Op.REDUCE_SCATTER,
    "reduce_scatter_single": Op.REDUCE_SCATTER, "_reduce_scatter_base": Op.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": Op.REDUCE_SCATTER, "REDUCE_SCATTER_coalesced": Op.REDUCE_SCATTER,
    "all_to_all": Op.ALL_TO_ALL, "all_to_all_single": Op.ALL_TO_ALL, "all_to_all_v_single": Op.ALL_TO_ALL,
    "gather": Op.GATHER, "scatter": Op.SCATTER, "send": Op.SEND, "recv": Op.RECV,
}  # fmt: skip
# Which side's elements must agree. What is not here may differ.
_INPUTS_AGREE = frozenset(
    "all_reduce allreduce_coalesced broadcast reduce _reduce_oop _all_gather_base all_gather_single "
    "all_gather_into_tensor_coalesced gather".split()
)
_OUTPUTS_AGREE = frozenset(
    "_broadcast_oop _reduce_scatter_base reduce_scatter_single reduce_scatter_tensor_coalesced scatter".split()
)
# Operations that no member can finish before all have entered.
SYNCHRONISING = frozenset({Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.BARRIER})

_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "uint8",  # NCCL moves bool as bytes
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
NAME_CHARS_MAX = 80
_TENSORS_MAX = 100_000


class Signature(NamedTuple):
    """What the members of a collective must agree on, and what the recorder calls it."""

    op: Op
    name: str  # as recorded, without the backend: "_reduce_scatter_base"
    dtype: str
    numel: int  # elements, where they must agree; -1: they may differ
    root: bool = False  # this rank sees itself as the root
    peer: int = -1  # the root, where it is recorded
    reduce_op: str = ""  # where it is recorded


def split_name(profiling_name: str) -> tuple[str, str, str]:
    """Return (backend, name, ends of a p2p operation): "nccl:send 0->1" is ("nccl", "send", "0->1")."""
    backend, colon, rest = profiling_name.partition(":")
    if not colon:
        backend, rest = "", profiling_name
    name, _, ends = rest.partition(" ")
    return backend, name[:NAME_CHARS_MAX], ends


def op_named(name: str) -> Op:
    """Return the operation that a recorder calls so; UNKNOWN for a name that nobody has met."""
    return _OPS.get(name, Op.UNKNOWN)


def signature_of(name: str, entry: Mapping[str, object]) -> Signature:
    """Return the signature of a recorded operation."""
    op = op_named(name)
    inputs, outputs = _numel(entry.get("input_sizes")), _numel(entry.get("output_sizes"))
    numel = inputs if name in _INPUTS_AGREE else outputs if name in _OUTPUTS_AGREE or op.is_p2p else -1
    # Who hands out, or takes in, what the others do not is the root, or takes itself for it.
    root = (op is Op.GATHER and outputs > 0) or (op is Op.SCATTER and inputs > 0)
    dtype = "" if op is Op.BARRIER else _dtype(entry.get("input_dtypes")) or _dtype(entry.get("output_dtypes"))
    if op is Op.SCATTER:
        dtype = _dtype(entry.get("output_dtypes"))
    return Signature(op=op, name=name, dtype=dtype, numel=numel, root=root)


def _numel(sizes: object) -> int:
    if not isinstance(sizes, list):
        return 0
    total = 0
    for size in sizes[:_TENSORS_MAX]:
        if isinstance(size, list) and all(isinstance(each, int) for each in size):
            total += math.prod(size[:32])
    return min(total, (1 << 62))


def _dtype(names: object) -> str:
    if isinstance(names, list) and names and isinstance(names[0], str):
        return _DTYPES.get(names[0], names[0].lower()[:20])
    return ""
