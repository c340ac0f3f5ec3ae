"""Records when process groups come and go, and who waits for a store, as waits of their own."""

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d as c10d

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.layout import MAKING_MEMBERS_MAX, NO_GROUP, Word
from ncclwatch.rank.agents.store_exchange import endpoint_of
from ncclwatch.rank.patches import chosen_device, guarded, keys
from ncclwatch.rank.patches.groups import group_of, known_groups
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.where.handlers import quietly

_LOCALLY = "use_local_synchronization"  # then a group is named by its members, and others need not make it
_PARENT = "parent_pg"  # the group that is split: ranks that are not in it need not come

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
        patches.replace(
            _distributed_c10d.Store, name, lambda f: _make_waiting(f, current, WaitKind.STORE, name_of=keys.awaited)
        )
    keys.install(patches, current)


def _make_new_group(original: Callable[..., object], current: Current) -> Callable[..., object]:
    names = tuple(inspect.signature(original).parameters)

    @functools.wraps(original)
    def new_group(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is None:
            return original(*args, **kwargs)
        state = guarded.ask(recorder, recorder.state)
        if state is None or state.group_wait:
            return original(*args, **kwargs)
        state.group_wait = True
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        number = guarded.ask(recorder, lambda: _number_of(given)) or 0
        guarded.attempt(recorder, _note_making, recorder, given)
        outer = guarded.enter(recorder, WaitKind.NEW_GROUP, 2, number)
        try:
            made = original(*args, **kwargs)
            guarded.attempt(recorder, _count_groups, recorder)
            if isinstance(made, c10d.ProcessGroup):
                site = guarded.ask(recorder, lambda: recorder.sites.here(3)) or 0
                guarded.attempt(recorder, group_of, recorder, made, site)
            return made
        finally:
            guarded.leave(recorder, outer)
            state.group_wait = False

    return new_group


def _number_of(given: Mapping[str, object]) -> int:
    """Return the number of the group that all ranks make now, 0 if only some have to: nobody tells which."""
    if given.get(_LOCALLY) or given.get(_PARENT) not in (None, dist.group.WORLD):
        return 0
    return c10d._world.group_count


def _count_groups(recorder: Recorder) -> None:
    """Record how many groups torch has counted: of one that all ranks make, its number says who has made it."""
    recorder.ring.set_word(Word.GROUPS_COUNTED, c10d._world.group_count)


def _note_making(recorder: Recorder, given: Mapping[str, object]) -> None:
    """Record who has to come to the group that this thread makes next."""
    if hasattr(c10d, "_hash_ranks_to_str"):  # older ones take no count into such a name
        recorder.ring.set_word(Word.GROUPS_HELD, len(c10d._world.pg_names))
    state = recorder.thread()
    if state.row >= 0:
        recorder.ring.set_making(state.row, _members_of(given))


def _members_of(given: Mapping[str, object]) -> tuple[int, ...]:
    """Return who has to come to the group, () if all ranks do or it is not known. torch takes them in ascending order.

    Ranks that can be gone through only once are left to torch.
    """
    ranks, parent = given.get("ranks"), given.get(_PARENT)
    if isinstance(parent, dist.ProcessGroup) and parent is not dist.group.WORLD:
        members: Sequence[int] = sorted(dist.get_process_group_ranks(parent))
    elif ranks is None and given.get(_LOCALLY):
        members = range(dist.get_world_size())
    elif isinstance(ranks, Collection) and (given.get(_LOCALLY) or _meets_alone(given)):
        members = sorted(map(int, ranks))
    else:
        return ()
    return tuple(members) if len(members) <= MAKING_MEMBERS_MAX else ()


def _meets_alone(given: Mapping[str, object]) -> bool:
    """Say whether who will not be in a group that all ranks make goes on at once: so it is with gloo and NCCL.

    Where a device is bound to the default group, NCCL splits that, and for a split all of its ranks are needed.
    """
    if getattr(c10d._get_default_group(), "bound_device_id", None) is not None:
        return False
    backends = str(given.get("backend") or dist.get_backend_config()).lower()
    kinds = {part.rpartition(":")[2] for part in backends.split(",")}  # "gloo", "cpu:gloo,cuda:nccl"
    meets_all = getattr(c10d, "_is_barrier_after_init", None)
    return kinds <= {"gloo", "nccl"} and meets_all is not None and meets_all() != 1


def _make_waiting(
    original: Callable[..., object],
    current: Current,
    kind: WaitKind,
    number_of: Callable[..., int] | None = None,
    name_of: Callable[..., str] | None = None,
) -> Callable[..., object]:
    @functools.wraps(original)
    def waiting(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is None:
            return original(*args, **kwargs)
        state = guarded.ask(recorder, recorder.state)
        if state is None or state.group_wait:  # inside init_process_group already, say: the outermost says what it is
            return original(*args, **kwargs)
        state.group_wait = True
        number = guarded.ask(recorder, lambda: number_of(*args, **kwargs)) if number_of is not None else 0
        name = guarded.ask(recorder, lambda: name_of(recorder, *args, **kwargs)) if name_of is not None else ""
        outer = guarded.enter(recorder, kind, 2, number or 0, name or "")
        try:
            return original(*args, **kwargs)
        finally:
            guarded.leave(recorder, outer)
            state.group_wait = False

    return waiting


def _make_init(original: Callable[..., object], current: Current, begin: Begin) -> Callable[..., object]:
    names = tuple(inspect.signature(original).parameters)

    def size_of(*args: object, **kwargs: object) -> int:
        """Return how many ranks are to come together, 0 if nobody says so here."""
        size = {**dict(zip(names, args, strict=False)), **kwargs}.get("world_size")
        return size if isinstance(size, int) and size > 0 else int(os.environ.get("WORLD_SIZE") or 0)

    waiting = _make_waiting(original, current, WaitKind.INIT, size_of)

    @functools.wraps(original)
    def init_process_group(*args: object, **kwargs: object) -> object:
        said = {**dict(zip(names, args, strict=False)), **kwargs}
        begin(said)
        recorder = current()
        if recorder is not None:
            guarded.attempt(recorder, _note_endpoint, recorder, said)
            backend = kwargs.get("backend", args[0] if args else None)
            guarded.attempt(recorder, recorder.preflight.note_backend, str(backend or ""))
        result = waiting(*args, **kwargs)
        if recorder is not None:
            note_initialised(recorder, in_use=False)
        else:
            begin(None)
        return result

    return init_process_group


def _note_endpoint(recorder: Recorder, said: Mapping[str, object]) -> None:
    """Record where the store of a call of init_process_group is; of one that is no TCPStore nothing."""
    endpoint = endpoint_of(said)
    if endpoint is not None:
        recorder.ring.set_word(Word.ENDPOINT, recorder.ring.name(f"{endpoint[0]}:{endpoint[1]}"))


def note_initialised(recorder: Recorder, *, in_use: bool) -> None:
    """Record the groups that exist and the default group's timeout. `in_use` as in `known_groups`."""
    with quietly:  # a backend without options; the timeout stays unknown
        for _ in known_groups(recorder, in_use=in_use):
            pass
        recorder.ring.set_word(Word.INITIALISED, 1)
        guarded.attempt(recorder, chosen_device.note_group, recorder)
        guarded.attempt(recorder, _count_groups, recorder)
        pg = dist.group.WORLD
        device = next(iter(pg._device_types)) if pg is not None else None
        if pg is not None and device is not None:
            timeout = pg._get_backend(device).options._timeout
            recorder.ring.set_word(Word.TIMEOUT_MS, int(timeout.total_seconds() * 1000))
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
