"""Records when process groups come and go, and who waits for a store, as waits of their own."""

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d as c10d

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.layout import NO_GROUP, Word
from ncclwatch.rank.patches import chosen_device, guarded
from ncclwatch.rank.patches.collectives import group_of, known_groups
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder

_LOCALLY = "use_local_synchronization"  # then a group is named by its members, and others need not make it

Current = Callable[[], Recorder | None]
Begin = Callable[[Mapping[str, object] | None], None]


def install(patches: Patches, current: Current, begin: Begin) -> None:
    """Patch what makes, splits and destroys groups. `begin` sees to it that there is a recorder.

    It is told the arguments of init_process_group before, and None after.
    """
    both = (c10d, dist)
    patches.replace_everywhere(both, "init_process_group", lambda f: _make_init(f, current, begin))
    for name in ("new_group", "split_group"):
        patches.replace_everywhere(both, name, lambda f: _make_new_group(f, current))
    patches.replace_everywhere(both, "destroy_process_group", lambda f: _make_destroy(f, current))
    patches.replace_everywhere((c10d,), "_set_pg_timeout", lambda f: _make_set_timeout(f, current))
    # Where somebody put another function in place of torch's: the helpers that init_process_group and new_group call.
    patches.replace(c10d, "rendezvous", lambda f: _make_rendezvous(f, current))
    patches.replace(c10d, "_new_process_group_helper", lambda f: _make_waiting(f, current, WaitKind.NEW_GROUP))
    for name in ("wait", "get"):
        patches.replace(_distributed_c10d.Store, name, lambda f: _make_waiting(f, current, WaitKind.STORE))


def _make_new_group(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def new_group(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is None:
            return original(*args, **kwargs)
        state = guarded.ask(recorder, recorder.state)
        if state is None or state.group_wait:
            return original(*args, **kwargs)
        state.group_wait = True
        number = guarded.ask(recorder, lambda: c10d._world.group_count) or 0
        outer = guarded.enter(recorder, WaitKind.NEW_GROUP, 2, 0 if kwargs.get(_LOCALLY) else number)
        try:
            made = original(*args, **kwargs)
            if isinstance(made, c10d.ProcessGroup):
                site = guarded.ask(recorder, lambda: recorder.sites.here(3)) or 0
                guarded.attempt(recorder, group_of, recorder, made, site)
            return made
        finally:
            guarded.leave(recorder, outer)
            state.group_wait = False

    return new_group


def _make_waiting(original: Callable[..., object], current: Current, kind: WaitKind) -> Callable[..., object]:
    @functools.wraps(original)
    def waiting(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is None:
            return original(*args, **kwargs)
        state = guarded.ask(recorder, recorder.state)
        if state is None or state.group_wait:  # inside init_process_group already, say: the outermost says what it is
            return original(*args, **kwargs)
        state.group_wait = True
        outer = guarded.enter(recorder, kind, 2)
        try:
            return original(*args, **kwargs)
        finally:
            guarded.leave(recorder, outer)
            state.group_wait = False

    return waiting


def _make_init(original: Callable[..., object], current: Current, begin: Begin) -> Callable[..., object]:
    waiting = _make_waiting(original, current, WaitKind.INIT)
    names = tuple(inspect.signature(original).parameters)

    @functools.wraps(original)
    def init_process_group(*args: object, **kwargs: object) -> object:
        begin({**dict(zip(names, args, strict=False)), **kwargs})
        recorder = current()
        if recorder is not None:
            guarded.attempt(recorder, _note_endpoint, recorder)
            backend = kwargs.get("backend", args[0] if args else None)
            guarded.attempt(recorder, recorder.preflight.note_backend, str(backend or ""))
        result = waiting(*args, **kwargs)
        if recorder is not None:
            note_initialised(recorder, in_use=False)
        else:
            begin(None)
        return result

    return init_process_group


def _note_endpoint(recorder: Recorder) -> None:
    endpoint = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    recorder.ring.set_word(Word.ENDPOINT, recorder.ring.name(endpoint))


def note_initialised(recorder: Recorder, *, in_use: bool) -> None:
    """Record the groups that exist and the default group's timeout. Never raises. `in_use` as in `known_groups`."""
    try:
        for _ in known_groups(recorder, in_use=in_use):
            pass
        recorder.ring.set_word(Word.INITIALISED, 1)
        guarded.attempt(recorder, chosen_device.note_group, recorder)
        pg = dist.group.WORLD
        device = next(iter(pg._device_types)) if pg is not None else None
        if pg is not None and device is not None:
            timeout = pg._get_backend(device).options._timeout
            recorder.ring.set_word(Word.TIMEOUT_MS, int(timeout.total_seconds() * 1000))
    except Exception:  # a backend without options; the timeout stays unknown
        pass
    guarded.attempt(recorder, lambda: recorder.preflight.note_backend(chosen_device.default_group()[1]))


def _make_destroy(original: Callable[..., object], current: Current) -> Callable[..., object]:
    waiting = _make_waiting(original, current, WaitKind.DESTROY)

    @functools.wraps(original)
    def destroy_process_group(*args: object, **kwargs: object) -> object:
        recorder = current()
        result = waiting(*args, **kwargs)
        if recorder is not None:
            guarded.attempt(recorder, _note_destroyed, recorder)
        return result

    return destroy_process_group


def _make_set_timeout(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def set_pg_timeout(timeout: timedelta, group: "dist.ProcessGroup | None" = None) -> object:
        result = original(timeout, group)
        recorder = current()
        if recorder is not None:
            # The options of a backend keep the timeout that it was made with.
            guarded.attempt(recorder, _note_new_timeout, recorder, timeout, group or dist.group.WORLD)
        return result

    return set_pg_timeout


def _note_new_timeout(recorder: Recorder, timeout: timedelta, pg: "dist.ProcessGroup | None") -> None:
    group = recorder.groups.get(pg.group_name) if pg is not None else None
    if group is not None and group.number != NO_GROUP:
        recorder.ring.limit_group(group.number, int(timeout.total_seconds() * 1000))


def _note_destroyed(recorder: Recorder) -> None:
    alive = {pg.group_name for pg in c10d._world.pg_map}
    for name in [name for name in recorder.groups if name not in alive]:
        recorder.forget_group(name)
    if not alive:
        recorder.ring.set_word(Word.INITIALISED, 0)


def _make_rendezvous(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def rendezvous(*args: object, **kwargs: object) -> Iterator[object]:
        found = original(*args, **kwargs)
        step = _make_waiting(functools.partial(next, found), current, WaitKind.INIT)
        while True:
            try:
                value = step()
            except StopIteration:
                return
            yield value

    return rendezvous
