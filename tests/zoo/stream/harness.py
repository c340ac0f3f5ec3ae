"""Puts the stream backend where programs ask for gloo, and makes Python's own reads of values wait for it.

Reads that pass the dispatcher (`item()`, `bool()`, `equal`, ...) wait in C++, see backend.cpp. These do not pass it:
they look straight into the memory of a CPU tensor. On a GPU each of them begins with a copy to the host.
"""

import functools
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ncclwatch.contract.ring.layout import Flag
from ncclwatch.rank.patches import groups

READS = ("tolist", "numpy", "cpu", "__array__", "__reduce_ex__", "share_memory_")
NAME = "stream"
_MADE: list[tuple[str, Any]] = []  # all groups, by name


def install(backend: ModuleType) -> None:
    """Register the backend, and give it to all who ask for gloo."""
    dist.Backend.register_backend(NAME, functools.partial(_create, backend), extended_api=True, devices=["cpu"])
    for name in ("init_process_group", "new_group"):
        _replace((c10d, dist), name, _instead_of_gloo)
    backend.watch_reads()
    for name in READS:
        setattr(torch.Tensor, name, _after(getattr(torch.Tensor, name), backend.synchronize))
    torch.save = _after(torch.save, backend.synchronize)
    # FSDP frees the memory of parameters that it has used; on a GPU that is in the order of the stream.
    torch.UntypedStorage.resize_ = _after(torch.UntypedStorage.resize_, backend.synchronize)
    # They read in C++ what they have waited for: on a GPU by copies to the host.
    blocking = functools.partial(_blocking, backend.set_blocking)
    _replace((dist,), "_verify_params_across_processes", blocking)
    _replace((torch._C._distributed_c10d.Reducer,), "_rebuild_buckets", blocking)
    # Objects: their sizes are computed from what was gathered, and read at once.
    for name in ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"):
        _replace((c10d, dist), name, blocking)
    # Only this account tells how far a group is, as on a GPU: works are not held, and calls that do not ask have none.
    torch._C._distributed_c10d._dump_nccl_trace_json = _account  # type: ignore[attr-defined]
    groups._add_group = _by_account(groups._add_group)
    # Destroying waits for what was enqueued, as NCCL's shutdown does.
    _replace((c10d, dist), "destroy_process_group", lambda f: _after(f, backend.synchronize))


def _create(backend: ModuleType, options: Any, _: object) -> object:
    inner = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    made = backend.StreamBackend(inner, options.group_rank, options.group_size)
    _MADE.append((options.group_id, made))
    return made


def _account(entries: bool, only_active: bool = False) -> str:
    """Return what NCCL's flight recorder tells of its groups, by their numbers; the entries tell their names."""
    status = {
        str(number): {
            "last_enqueued_collective": str(made.enqueued or -1),
            "last_started_collective": "-1",
            "last_completed_collective": str(made.completed or -1),
        }
        for number, (_, made) in enumerate(_MADE)
        if made.enqueued
    }
    found = [
        {"pg_id": int(number), "process_group": [_MADE[int(number)][0], ""], "record_id": record, "op_id": op}
        | {"profiling_name": f"stream:{name}", "collective_seq_id": collective, "p2p_seq_id": message}
        | {"state": "completed" if complete else "scheduled"}
        for number in (status if entries else ())
        for record, name, collective, message, op, complete in _MADE[int(number)][1].entries
    ]
    return json.dumps({"pg_status": status} | ({"entries": found} if entries else {}))


def _by_account(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take a group of CPU tensors for one of a GPU's."""

    @functools.wraps(original)
    def add_group(recorder: Any, *args: Any) -> Any:
        group = original(recorder, *args)
        if not group.host_waits:
            group.by_account = group.on_device = True
            recorder.flag(group, Flag.BLIND)
        return group

    return add_group


def _replace(holders: tuple[Any, ...], name: str, make: Callable[[Any], Any]) -> None:
    replaced = make(getattr(holders[0], name))
    for holder in holders:
        setattr(holder, name, replaced)


def _instead_of_gloo(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend") in ("gloo", "cpu:gloo"):
            kwargs["backend"] = NAME
        return original(*(NAME if value in ("gloo", "cpu:gloo") else value for value in args), **kwargs)

    return replaced


def _after(original: Callable[..., Any], synchronize: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        synchronize()
        return original(*args, **kwargs)

    return read


def _blocking(set_blocking: Callable[[bool], bool], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        before = set_blocking(True)
        try:
            return original(*args, **kwargs)
        finally:
            set_blocking(before)

    return blocking
