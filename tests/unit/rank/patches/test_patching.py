"""A function of a module that is patched stays the object it is, for whoever took it out of the module before."""

import functools
import inspect
import pickle
import sys
import types
from collections.abc import Callable, Iterator

import pytest

from ncclwatch.rank.patches.patching import Patches

SOURCE = '''
import functools

def decorate(unit, times=2):
    @functools.wraps(unit)
    def decorated(*args, **kwargs):
        return times, unit(*args, **kwargs)
    return decorated

def plain(first, second=2, *, third=3):
    """Say what it got."""
    return first, second, third

@decorate
def wrapped(first, second=2, *, third=3):
    return first, second, third

def _make():
    def made(first):
        return first
    return made

nameless = _make()
renamed = plain
'''


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    found = types.ModuleType("a_module_of_torch")
    sys.modules[found.__name__] = found
    exec(SOURCE, vars(found))
    yield found
    del sys.modules[found.__name__]


class Counting:
    """Makes wrappers that count their calls."""

    def __init__(self) -> None:
        self.calls = 0

    def make(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def counted(*args: object, **kwargs: object) -> object:
            self.calls += 1
            return original(*args, **kwargs)

        return counted


@pytest.mark.parametrize("name", ["plain", "wrapped"])
def test_a_function_bound_before_is_recorded_pickles_and_is_itself_again_afterwards(
    module: types.ModuleType, name: str
) -> None:
    early, counting, patches = getattr(module, name), Counting(), Patches()
    said, signature, code, attributes = early(1, third=4), inspect.signature(early), early.__code__, dict(vars(early))
    patches.replace(module, name, counting.make)
    assert early(1, third=4) == said
    assert counting.calls == 1
    assert getattr(module, name) is early
    assert pickle.loads(pickle.dumps(early)) is early
    assert pickle.loads(pickle.dumps(functools.partial(early, 7))).func is early
    assert inspect.signature(early) == signature
    patches.restore()
    assert early(1, third=4) == said
    assert counting.calls == 1
    assert (early.__code__, vars(early), inspect.signature(early)) == (code, attributes, signature)


def test_two_patches_of_one_function_both_hear_of_a_call_and_go_one_after_the_other(module: types.ModuleType) -> None:
    one, two, patches = Counting(), Counting(), Patches()
    code = module.plain.__code__
    patches.replace(module, "plain", one.make)
    patches.replace_everywhere((module,), "plain", two.make)
    assert module.plain(5) == (5, 2, 3)
    assert (one.calls, two.calls) == (1, 1)
    patches.restore()
    assert module.plain.__code__ is code


def test_what_others_did_to_a_function_after_us_stays(module: types.ModuleType) -> None:
    counting, patches = Counting(), Patches()
    patches.replace(module, "plain", counting.make)
    theirs = (lambda first: "theirs").__code__
    module.plain.__code__ = theirs
    patches.restore()
    assert module.plain.__code__ is theirs


def test_a_function_that_its_module_does_not_know_by_its_name_is_replaced_and_put_back(
    module: types.ModuleType,
) -> None:
    early, counting, patches = module.nameless, Counting(), Patches()
    patches.replace(module, "nameless", counting.make)
    assert module.nameless is not early
    assert module.nameless(3) == 3
    patches.restore()
    assert module.nameless is early


def test_an_exception_passes_with_its_traceback_and_the_locals_of_every_frame(module: types.ModuleType) -> None:
    patches = Patches()
    patches.replace(module, "wrapped", Counting().make)
    with pytest.raises(TypeError) as raised:
        module.wrapped(1, 2, 3, 4)
    assert [entry.locals is not None for entry in raised.traceback] == [True] * len(raised.traceback)
    patches.restore()
