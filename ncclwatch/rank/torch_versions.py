"""Everything that depends on the version of torch, in one file: what lies elsewhere in another, or is not there.

The range that is meant is in `ncclwatch.contract.version`; what is absent is left out, never an error.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ncclwatch.contract import config
from ncclwatch.contract.version import TORCH_OLDEST


def too_old() -> str:
    """Return why this torch is not recorded, "" if it is: nobody has looked what our kernels do to an older one."""
    import torch

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version >= TORCH_OLDEST or os.environ.get(config.ENV_ANY_TORCH) == "1":
        return ""
    oldest = ".".join(map(str, TORCH_OLDEST))
    return (
        f"torch {torch.__version__} is older than {oldest}, the oldest that ncclwatch has been tried with. This rank "
        f"is not watched; training goes on. Set {config.ENV_ANY_TORCH}=1 to record it all the same."
    )


def reduce_code(boxed: Any) -> int:
    """Return the code of a reduce op as the dispatcher hands it on, counted from 1.

    0 where Python cannot ask for it, as in torch before 2.10: the native recorder reads it there too.
    """
    try:
        return int(boxed.op()) + 1
    except AttributeError:
        return 0


def nccl_recorder_dump(entries: bool) -> str:
    """Return the dump of the flight recorder for NCCL as JSON, with its entries or without; "{}" if there is none."""
    return _dump("_dump_nccl_trace_json", entries)


def flight_recorder_entries() -> list[dict[str, Any]]:
    """Return what torch's flight recorders hold: builds with CUDA have one for NCCL, 2.8 and newer one for the rest."""
    dumps = (json.loads(_dump(name, True)) for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"))
    return [entry for dump in dumps for entry in dump.get("entries", [])]


def _dump(name: str, entries: bool) -> str:
    from torch._C import _distributed_c10d

    dump = getattr(_distributed_c10d, name, None)
    if dump is None:
        return "{}"
    found = dump(entries, False)
    return found.decode() if isinstance(found, bytes) else str(found)


USERS_WORKER_SOCKET = "TORCH_WORKER_SERVER_SOCKET"  # where torch's own `worker_main` listens, if the user says so


def worker_server() -> Callable[[str], object] | None:
    """Return torch's server that answers in C++, on a unix socket; None where this torch has none.

    2.5 has the class. What it can be asked for differs: the recorder for gloo since 2.8, that for NCCL with CUDA.
    """
    from torch._C import _distributed_c10d

    found: Callable[[str], object] | None = getattr(_distributed_c10d, "_WorkerServer", None)
    return found


def log_level() -> "ctypes.c_int | None":
    """Return the variable below which c10 logs nothing, None where it does not lie there."""
    import torch

    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


FSDP = "torch.distributed.fsdp"  # both generations: once it is imported, the functions below cost nothing
DYNAMO_RULES = "torch._dynamo.trace_rules"  # says which files torch.compile may look into


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


def skip_in_dynamo(places: list[str]) -> Callable[[], None]:
    """Have dynamo leave files alone whose paths begin like this, as it does with torch's own; returns the undoing."""
    rules = sys.modules[DYNAMO_RULES]
    rules.SKIP_DIRS.extend(places)
    rules._recompile_re()

    def undo() -> None:
        rules.SKIP_DIRS[:] = [each for each in rules.SKIP_DIRS if each not in places]
        rules._recompile_re()

    return undo


def backward_engine_modules() -> tuple[ModuleType, ...]:
    """Return the modules that hold the function which runs a backward pass."""
    import torch

    return (torch.autograd.graph, torch.autograd)
