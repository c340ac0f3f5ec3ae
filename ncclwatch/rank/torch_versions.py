"""What lies elsewhere in another version of torch, or is not there? Everything that depends on it, in one file.

The range that is meant is in `ncclwatch.contract.version`; what is absent is left out, never an error.
"""

from types import ModuleType


def flight_recorder_dump(entries: bool) -> str:
    """Return the dump of torch's flight recorder as JSON, with its entries or without; "{}" if there is none.

    Builds with CUDA have one for NCCL; since 2.8 there is one for the other backends.
    """
    from torch._C import _distributed_c10d

    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(_distributed_c10d, name, None)
        if dump is not None:
            found = dump(entries, False)
            return found.decode() if isinstance(found, bytes) else str(found)
    return "{}"


def fsdp2_unit_class() -> type | None:
    """Return the class of one unit of FSDP2; torch 2.6 made it what it is."""
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
    except ImportError:
        return None
    return FSDPParamGroup


def fsdp1_parts() -> tuple[type, type, ModuleType] | None:
    """Return FSDP1's module class, the class that holds one unit's parameters, and the module that reduces them."""
    try:
        from torch.distributed.fsdp import FullyShardedDataParallel, _runtime_utils
        from torch.distributed.fsdp._flat_param import FlatParamHandle
    except ImportError:
        return None
    return FullyShardedDataParallel, FlatParamHandle, _runtime_utils


def backward_engine_modules() -> tuple[ModuleType, ...]:
    """Return the modules that hold the function which runs a backward pass."""
    import torch

    return (torch.autograd.graph, torch.autograd)
