"""Records the operations that this rank hands to its backends, seen at one place, each once.

Every operation that moves data through a process group, from Python or from C++ (DDP's buckets,
functional collectives, DTensor, compiled code), passes the torch dispatcher as an op of the
`c10d` library. A kernel at the key BackendSelect sees it there, on the thread that issues it,
in the backend's own order. No kernel of torch's lives at that key for these ops, and it is in
the included set also under inference_mode. Nothing above this layer needs to be counted, so
nothing can be counted twice.
"""

import functools
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C import DispatchKey, _distributed_c10d
from torch.distributed import distributed_c10d as c10d

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import DTYPES, NO_GROUP, OPS, REDUCE_OPS, Flag
from ncclwatch.rank import torch_versions
from ncclwatch.rank.operations import Group, Issued
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.chosen_device import note_used
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder

_DTYPE_CODE = {getattr(torch, name): code for code, name in enumerate(DTYPES) if hasattr(torch, name)}
_OTHER_DTYPE = len(DTYPES) - 1
_HOST_BACKENDS = ("gloo", "mpi")  # wait() blocks the host until the work is done; with any other it may not


class _Kernel(NamedTuple):
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


def install(patches: Patches, current: Callable[[], Recorder | None], native: ModuleType | None) -> None:
    """Register the kernels and patch Work.wait. `current` returns the recorder, None when off."""
    if native is not None:
        native.install(list(_native_rows()))
        patches.on_restore(native.uninstall)
        patches.replace(_distributed_c10d.Work, "wait", native.make_wait)
        _install_regions(patches, current)
        return
    after = torch._C._dispatch_keyset_full_after(DispatchKey.BackendSelect)
    kernels: dict[str, Callable[..., object]] = {}
    for name, overload, spec in _specs():
        kernels[name] = _make_kernel(overload, after, spec, current)
    _register(patches, "c10d", kernels)
    wait_tensor = torch.ops._c10d_functional.wait_tensor.default
    _register(patches, "_c10d_functional", {"wait_tensor": _make_wait_tensor(wait_tensor, after, current)})
    patches.replace(_distributed_c10d.Work, "wait", lambda f: _make_wait(f, current))
    _install_regions(patches, current)


def _install_regions(patches: Patches, current: Callable[[], Recorder | None]) -> None:
    """Patch what issues operations and waits for them in C++: DDP's constructor, buffers, and rebuilt buckets."""
    for name in ("_verify_params_across_processes", "_broadcast_coalesced"):
        patches.replace(dist, name, lambda f: _make_region(f, current))
    patches.replace(_distributed_c10d.Reducer, "_rebuild_buckets", lambda f: _make_region(f, current))


def _specs() -> "Iterable[tuple[str, torch._ops.OpOverload, _Kernel]]":
    """Yield the c10d ops of this torch that move data, and how their arguments are read."""
    for name, (sized_by, op) in _KERNELS.items():
        overload = getattr(getattr(torch.ops.c10d, name, None), "default", None)
        if overload is not None:
            yield name, overload, _positions(overload, sized_by, op)


def _native_rows() -> Iterable[tuple[str, int, int, int, int, int, int, bool, bool]]:
    """Yield the same as the native recorder takes it."""
    for name, _, spec in _specs():
        op = spec.op
        sized = op not in (Op.BARRIER, Op.MONITORED_BARRIER)
        yield (
            name, OPS.index(op), spec.sized_by, spec.group, spec.root, spec.reduce_op, spec.async_op,
            sized, op.is_p2p,
        )  # fmt: skip


def _register(patches: Patches, namespace: str, kernels: dict[str, Callable[..., object]]) -> None:
    """Put kernels before those of the backends, until the patches are restored."""
    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    patches.on_restore(library._destroy)
    for name, kernel in kernels.items():
        library.impl(name, kernel, "BackendSelect", with_keyset=True)  # type: ignore[no-untyped-call]


def _positions(overload: "torch._ops.OpOverload", sized_by: str, op: Op) -> _Kernel:
    names = [argument.name for argument in overload._schema.arguments]
    return _Kernel(
        op=op,
        sized_by=names.index(sized_by) if sized_by in names else -1,
        group=names.index("process_group"),
        root=next((names.index(name) for name in _PEERS if name in names), -1),
        reduce_op=names.index("reduce_op") if "reduce_op" in names else -1,
        async_op=names.index("async_op") if "async_op" in names else -1,
    )


def _make_kernel(
    overload: "torch._ops.OpOverload",
    after: "torch._C.DispatchKeySet",
    spec: _Kernel,
    current: Callable[[], Recorder | None],
) -> Callable[..., object]:
    issue = _make_issue(spec)
    redispatch = overload._handle.redispatch_boxed  # what overload.redispatch calls

    def kernel(keyset: "torch._C.DispatchKeySet", *args: object, **kwargs: object) -> object:
        recorder = current()
        begun = None if recorder is None else issue(recorder, args)
        if recorder is None or begun is None:
            return redispatch(keyset & after, *args, **kwargs)
        issued, outer = begun
        try:
            result = redispatch(keyset & after, *args, **kwargs)
        except BaseException:
            guarded.leave(recorder, outer)
            guarded.attempt(recorder, recorder.refuse, issued)
            raise
        _track(recorder, issued, outer, result)
        return result

    return kernel


def _make_issue(spec: _Kernel) -> Callable[[Recorder, tuple[object, ...]], tuple[Issued, bytes] | None]:
    """Return what records one kind of operation and enters its wait; None if it could not, or if nothing moves.

    Issuing may block by itself: NCCL's first collective of a group, TORCH_DISTRIBUTED_DEBUG=DETAIL, monitored_barrier.

    The fields of `spec` are looked up here, once: this is on the path of every operation.
    """
    code = OPS.index(spec.op)
    group_at, root_at, reduce_at, sized_at = spec.group, spec.root, spec.reduce_op, spec.sized_by
    tensor_at = max(sized_at, 0)  # tensors of p2p are the first argument, too
    has_size = spec.op not in (Op.BARRIER, Op.MONITORED_BARRIER)
    sizes_agree = sized_at >= 0 or spec.op.is_p2p
    reduce_max = len(REDUCE_OPS) - 1
    async_at = spec.async_op
    unbox = c10d.ProcessGroup.unbox
    reduce_code = torch_versions.reduce_code

    def issue(recorder: Recorder, args: tuple[Any, ...]) -> tuple[Issued, bytes] | None:
        try:
            tensors = args[tensor_at]
            tensor = _first_tensor(tensors)
            if tensor is not None and tensor.is_meta:  # a compiler tries the op on
                return None
            numel = dtype = 0
            if has_size and tensor is not None:
                dtype = _DTYPE_CODE.get(tensor.dtype, _OTHER_DTYPE)
                if sizes_agree:
                    numel = tensor.numel() if tensors is tensor else sum(part.numel() for part in tensors)
            group = group_of(recorder, unbox(args[group_at]))
            if group.by_account and tensor is not None and tensor.is_cuda and tensor.get_device() != group.device:
                group.device = tensor.get_device()
                note_used(recorder, group.device)
            reduce_op = min(reduce_code(args[reduce_at]), reduce_max) if reduce_at >= 0 else 0
            peer = _global_rank(group, args[root_at]) if root_at >= 0 else -1
            site = recorder.sites.here(3) or recorder.backward_site
            in_order = 0 <= async_at < len(args) and not args[async_at]  # left out where it has its default, True
            issued = recorder.issue(group, code, numel, (peer, dtype, reduce_op), site, in_order)
            issued.on_host = group.host_waits and tensor is not None and tensor.is_cpu
            return issued, recorder.enter(WaitKind.COLLECTIVE, site, issued)
        except Exception:  # nothing of ours may stop training
            guarded.count_gap(recorder)
            return None

    return issue


def _first_tensor(found: Any) -> torch.Tensor | None:
    while type(found) is list:
        found = found[0] if found else None
    return found  # type: ignore[no-any-return]


def _global_rank(group: Group, rank: int) -> int:
    return group.ranks[rank] if 0 <= rank < len(group.ranks) else rank


def group_of(recorder: Recorder, pg: "c10d.ProcessGroup", site: int = 0) -> Group:
    """Return what is known of a process group, making its acquaintance at first sight, or where it is made."""
    name = pg.group_name
    known = recorder.groups.get(name)
    if known is not None:
        return known
    ranks = c10d._world.pg_group_ranks.get(pg)
    members = sorted(ranks, key=ranks.__getitem__) if ranks else list(range(pg.size()))
    return _add_group(recorder, pg, members, 0, site)


def _add_group(recorder: Recorder, pg: "c10d.ProcessGroup", members: list[int], enqueued: int, site: int = 0) -> Group:
    group = recorder.add_group(pg.group_name, pg.group_desc or "", members, enqueued, site)
    backends = _backends(pg)
    group.host_waits = backends.get("cpu", "gloo") in _HOST_BACKENDS
    group.by_account = backends.get("cuda") == "nccl"
    group.on_device = backends == {"cuda": "nccl"}
    asynchronous = not group.host_waits or any(name not in _HOST_BACKENDS for name in backends.values())
    recorder.flag(
        group,
        (Flag.ASYNC if asynchronous else 0) | (Flag.BLIND if group.by_account else 0) | (Flag.LATE if enqueued else 0),
    )
    _note_timeout(recorder, group, pg)
    return group


def _note_timeout(recorder: Recorder, group: Group, pg: "c10d.ProcessGroup") -> None:
    """Record after how long a group's operations are given up, of which the job ends."""
    try:
        limits = [pg._get_backend(device).options._timeout for device in pg._device_types]
        if limits and group.number != NO_GROUP:
            recorder.ring.limit_group(group.number, int(min(limits).total_seconds() * 1000))
    except Exception:  # a backend without options; the timeout stays unknown
        return


def _backends(pg: "c10d.ProcessGroup") -> dict[str, str]:
    """Return the name of a group's backend by device type; {} if torch does not tell."""
    config = str(c10d._world.pg_backend_config.get(pg, ""))
    pairs = (part.split(":", 1) for part in config.split(",") if ":" in part)
    return dict(pairs)


def _track(recorder: Recorder, issued: Issued, outer: bytes, result: object) -> None:
    try:
        box = result[-1] if isinstance(result, (tuple, list)) else result
        work = c10d.Work.unbox(box) if isinstance(box, torch.ScriptObject) else None
        recorder.track(issued, work)
        recorder.leave_issue(outer, issued)
    except Exception:
        guarded.count_gap(recorder)
        guarded.leave(recorder, outer)


def _make_region(original: Callable[..., object], current: Callable[[], Recorder | None]) -> Callable[..., object]:
    @functools.wraps(original)
    def region(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is None:
            return original(*args, **kwargs)
        outer = guarded.ask(recorder, recorder.enter_region)
        try:
            return original(*args, **kwargs)
        finally:
            if outer is not None:
                guarded.attempt(recorder, recorder.leave_region, outer)

    return region


def _make_wait(original: Callable[..., object], current: Callable[[], Recorder | None]) -> Callable[..., object]:
    def wait(self: object, *args: object, **kwargs: object) -> object:
        recorder = current()
        issued = None if recorder is None else recorder.open_works.get(id(self))
        if recorder is None or issued is None:
            return original(self, *args, **kwargs)
        outer = _enter_wait(recorder, issued)
        began_ns = time.monotonic_ns()
        try:
            result = original(self, *args, **kwargs)
            issued.done = issued.on_host
            guarded.attempt(recorder, recorder.meter, issued, time.monotonic_ns() - began_ns)
            return result
        finally:
            guarded.leave(recorder, outer)
            guarded.attempt(recorder, recorder.drain, issued.group)

    return wait


def _enter_wait(recorder: Recorder, issued: Issued) -> bytes | None:
    try:
        site = recorder.sites.here(3)
        if issued.label and site:
            site = recorder.sites.labelled(site, issued.label)
        return recorder.enter(WaitKind.COLLECTIVE, site or issued.site, issued)
    except Exception:
        guarded.count_gap(recorder)
        return None


def _make_wait_tensor(
    overload: "torch._ops.OpOverload",
    after: "torch._C.DispatchKeySet",
    current: Callable[[], Recorder | None],
) -> Callable[..., object]:
    """The wait of functional collectives; it names no work, so the newest one of this thread is meant."""

    def wait_tensor(keyset: "torch._C.DispatchKeySet", tensor: torch.Tensor) -> object:
        recorder = current()
        newest = None if recorder is None else guarded.ask(recorder, recorder.newest)
        if recorder is None or newest is None or newest.seq <= newest.group.completed:
            return overload.redispatch(keyset & after, tensor)
        outer = _enter_wait(recorder, newest)
        began_ns = time.monotonic_ns()
        try:
            result = overload.redispatch(keyset & after, tensor)
            newest.done = newest.on_host
            guarded.attempt(recorder, recorder.meter, newest, time.monotonic_ns() - began_ns)
            return result
        finally:
            guarded.leave(recorder, outer)
            guarded.attempt(recorder, recorder.drain, newest.group)

    return wait_tensor


def known_groups(recorder: Recorder, *, in_use: bool) -> Iterable[str]:
    """Register the groups that exist. `in_use`: they may have run collectives before anybody recorded them."""
    for pg in list(c10d._world.pg_map):
        name = pg.group_name
        if name not in recorder.groups:
            ranks = c10d._world.pg_group_ranks.get(pg, {})
            members = sorted(ranks, key=ranks.__getitem__)
            _add_group(recorder, pg, members, _seen_before(name) if in_use else 0)
        yield name


def _seen_before(name: str) -> int:
    """Return how many collectives a group ran before attach(), by torch's own flight recorder."""
    try:
        entries = torch_versions.flight_recorder_entries()
        return max((e["collective_seq_id"] for e in entries if e["process_group"][0] == name), default=0)
    except Exception:  # absent in this build, or another layout
        return 0
