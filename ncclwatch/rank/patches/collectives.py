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
from typing import Any

import torch
import torch.distributed as dist
from torch._C import DispatchKey, _distributed_c10d
from torch.distributed import distributed_c10d as c10d

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import OPS, REDUCE_OPS
from ncclwatch.rank import torch_versions
from ncclwatch.rank.operations import Group, Issued, Work
from ncclwatch.rank.patches import guarded, hot_path
from ncclwatch.rank.patches.c10d_ops import DTYPE_CODES, OTHER_DTYPE, Kernel, specs
from ncclwatch.rank.patches.chosen_device import note_used
from ncclwatch.rank.patches.groups import group_of
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder


def install(
    patches: Patches,
    current: Callable[[], Recorder | None],
    native: ModuleType | None,
    hot: ModuleType | None = None,
) -> None:
    """Register the kernels and patch Work.wait. `current` returns the recorder, None when off.

    `native`: with a torch side, which has kernels in C++. `hot`: without one, with the hot path in C.
    """
    if native is not None:
        native.install(list(_native_rows()))
        patches.replace(_distributed_c10d.Work, "wait", lambda f: native.make_wait(f, _distributed_c10d.Work))
        _install_regions(patches, current)
        return
    after = torch._C._dispatch_keyset_full_after(DispatchKey.BackendSelect)
    kernels: dict[str, Callable[..., object]] = {}
    for name, overload, spec in specs():
        if hot is None:
            kernels[name] = _make_kernel(overload, after, spec, current)
        else:
            kernels[name] = hot_path.make_kernel(overload, after, spec, current, hot)
    _register(patches, "c10d", kernels)
    _register(patches, "_c10d_functional", {"wait_tensor": _wait_tensor(after, current, hot)})
    patches.replace(
        _distributed_c10d.Work,
        "wait",
        lambda f: _make_wait(f, current) if hot is None else hot_path.make_wait(f, current, hot),
    )
    _install_regions(patches, current)


def _wait_tensor(
    after: "torch._C.DispatchKeySet", current: Callable[[], Recorder | None], hot: ModuleType | None
) -> Callable[..., object]:
    overload = torch.ops._c10d_functional.wait_tensor.default
    if hot is None:
        return _make_wait_tensor(overload, after, current)
    return hot_path.make_wait_tensor(overload, after, current, hot)


def _install_regions(patches: Patches, current: Callable[[], Recorder | None]) -> None:
    """Patch what issues operations and waits for them in C++: DDP's constructor, buffers, and rebuilt buckets."""
    for name in ("_verify_params_across_processes", "_broadcast_coalesced"):
        patches.replace(dist, name, lambda f: _make_region(f, current))
    patches.replace(_distributed_c10d.Reducer, "_rebuild_buckets", lambda f: _make_region(f, current))


def _native_rows() -> Iterable[tuple[str, int, int, int, int, int, int, bool, bool]]:
    """Yield the same as the native recorder takes it."""
    for name, _, spec in specs():
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


def _make_kernel(
    overload: "torch._ops.OpOverload",
    after: "torch._C.DispatchKeySet",
    spec: Kernel,
    current: Callable[[], Recorder | None],
) -> Callable[..., object]:
    issue = _make_issue(spec)
    over_when_left = not overload._schema.returns  # monitored_barrier returns no work: its exception ends it
    redispatch = overload._handle.redispatch_boxed  # what overload.redispatch calls

    def kernel(keyset: "torch._C.DispatchKeySet", *args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is None:
            return redispatch(keyset & after, *args, **kwargs)
        try:
            begun = issue(recorder, args)
        except BaseException:  # nothing of ours may stop training
            guarded.miss(recorder, None)
            begun = None
        if begun is None:
            return redispatch(keyset & after, *args, **kwargs)
        issued, outer = begun
        try:
            result = redispatch(keyset & after, *args, **kwargs)
        except BaseException:
            guarded.leave(recorder, outer)
            if over_when_left:
                guarded.attempt(recorder, recorder.track, issued, None)
            else:
                guarded.attempt(recorder, recorder.refuse, issued)
            raise
        _track(recorder, issued, outer, result)
        return result

    return kernel


def _make_issue(spec: Kernel) -> Callable[[Recorder, tuple[object, ...]], tuple[Issued, bytes] | None]:
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
        issued = None
        try:
            tensors = args[tensor_at]
            tensor = _first_tensor(tensors)
            if tensor is not None and tensor.is_meta:  # a compiler tries the op on
                return None
            numel = dtype = 0
            if has_size and tensor is not None:
                dtype = DTYPE_CODES.get(tensor.dtype, OTHER_DTYPE)
                if sizes_agree:
                    numel = tensor.numel() if tensors is tensor else sum(part.numel() for part in tensors)
            group = group_of(recorder, unbox(args[group_at]))
            if group.by_account and tensor is not None and tensor.is_cuda and tensor.get_device() != group.device:
                group.device = tensor.get_device()
                note_used(recorder, group.device)
            reduce_op = min(reduce_code(args[reduce_at]), reduce_max) if reduce_at >= 0 else 0
            peer = _global_rank(group, args[root_at]) if root_at >= 0 else -1
            site = recorder.sites.here(3) or recorder.sites.of_backward()
            in_order = 0 <= async_at < len(args) and not args[async_at]  # left out where it has its default, True
            issued = recorder.issue(group, code, numel, (peer, dtype, reduce_op), site, in_order)
            issued.on_host = group.host_waits and tensor is not None and tensor.is_cpu
            return issued, recorder.enter(WaitKind.COLLECTIVE, site, issued)
        except BaseException:  # nothing of ours may stop training
            guarded.miss(recorder, issued)
            return None

    return issue


def _first_tensor(found: Any) -> torch.Tensor | None:
    while type(found) is list:
        found = found[0] if found else None
    return found  # type: ignore[no-any-return]


def _global_rank(group: Group, rank: int) -> int:
    """Return the rank in the job of a rank of a group; -1: the group's members are not known."""
    return group.ranks[rank] if 0 <= rank < len(group.ranks) else rank if group.ranks else -1


def _track(recorder: Recorder, issued: Issued, outer: bytes, result: object) -> None:
    try:
        recorder.track(issued, _work_of(result))
        recorder.leave_issue(outer, issued)
    except BaseException:
        guarded.leave(recorder, outer)
        guarded.count_gap(recorder)


def _work_of(result: object) -> Work | None:
    box = result[-1] if isinstance(result, (tuple, list)) else result
    return c10d.Work.unbox(box) if isinstance(box, torch.ScriptObject) else None


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
