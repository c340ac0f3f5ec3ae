"""Records the names of keys that a rank waits for in a store, and of those that it has set, with # for each number.

Who has set keys of such a name before is who leaves one out. Names are kept for as long as there is room for a few.
"""

import functools
import re
from collections.abc import Callable

from torch._C import _distributed_c10d

from ncclwatch.contract.ring import facts
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder

NAMES_MAX = 16  # of keys that are set, and as many of those that are waited for
NAME_MAX = 60  # characters
_NUMBER = re.compile(r"\d+")


def install(patches: Patches, current: Callable[[], Recorder | None]) -> None:
    """Patch what sets a key."""
    patches.replace(_distributed_c10d.Store, "set", lambda f: _make_set(f, current))


def _make_set(original: Callable[..., object], current: Callable[[], Recorder | None]) -> Callable[..., object]:
    @functools.wraps(original)
    def set_key(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is not None:
            guarded.attempt(recorder, _note, recorder, kwargs.get("key", args[1] if len(args) > 1 else None))
        return original(*args, **kwargs)

    return set_key


def _note(recorder: Recorder, key: object) -> None:
    known = recorder.facts.known(facts.KEYS).get("set")
    names = known if isinstance(known, list) else []
    name = name_of(key)
    if name and name not in names and len(names) < NAMES_MAX:
        recorder.facts.tell(facts.KEYS, set=[*names, name])


def name_of(key: object) -> str:
    """Return a key with # for each number; "" for what is no key, and for several that differ: which is missing?"""
    keys = key if isinstance(key, (list, tuple)) else (key,)
    names = {_NUMBER.sub("#", each)[:NAME_MAX] if isinstance(each, str) else "" for each in keys}
    return names.pop() if len(names) == 1 else ""


def awaited(recorder: Recorder, _store: object, key: object = None, *_: object, keys: object = None) -> str:
    """Return the name of the key that a call waits for, "" where there is no room for another one."""
    name = name_of(key if key is not None else keys)
    if name not in recorder.key_names and len(recorder.key_names) >= NAMES_MAX:
        return ""
    recorder.key_names.add(name)
    return name
