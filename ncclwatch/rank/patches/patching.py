"""Replaces names of torch, and puts the identical objects back.

A function of a module stays the object it is and gets other code: whoever took it out of the module before attach() is
recorded as well, and it can still be pickled, which goes by its name and asks for the identical object. What else can
be called (methods, what C++ exports) is replaced under its name.
"""

import functools
import itertools
import keyword
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType

_numbers = itertools.count(1)


class Patches:
    """Replaced attributes, in order. `restore` puts back what was there, unless somebody patched after us."""

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, object, object]] = []
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: object, name: str, make: Callable[[Callable[..., object]], object]) -> None:
        """Replace `owner.name` by make(original), if there is such a name.

        The original is taken from the owner's own `__dict__`: for classes made by pybind11 the
        attribute is another object than what the class holds, and writing that back would break it.
        """
        original = vars(owner).get(name)
        bound = getattr(owner, name, None)
        if original is None or not callable(bound) or (isinstance(owner, ModuleType) and self._recode(original, make)):
            return
        ours = make(bound)
        setattr(owner, name, ours)
        self._replaced.append((owner, name, original, ours))

    def replace_everywhere(
        self, owners: tuple[object, ...], name: str, make: Callable[[Callable[..., object]], object]
    ) -> None:
        """Replace one function under all modules that hold it, by one and the same wrapper."""
        original = vars(owners[0]).get(name)
        if not callable(original) or self._recode(original, make):
            return
        ours = make(original)
        for owner in owners:
            if vars(owner).get(name) is original:
                setattr(owner, name, ours)
                self._replaced.append((owner, name, original, ours))

    def _recode(self, function: object, make: Callable[[Callable[..., object]], object]) -> bool:
        """Give a function the code that calls make(what it was); returns whether it could be done."""
        if not isinstance(function, FunctionType) or not _is_found_by_name(function):
            return False
        key = f"_ncclwatch_{next(_numbers)}"
        try:
            code = _forwarding(function.__code__, key)
        except (SyntaxError, ValueError):  # free variables that no source can name
            return False
        was = _copy(function)
        # A thread may be between the first and the last step of the new code at any time: the key stays for ever.
        function.__globals__[key] = make(was)
        function.__code__ = code
        function.__wrapped__ = was  # type: ignore[attr-defined]  # inspect.signature goes by it

        def undo() -> None:
            if function.__code__ is code:  # else somebody gave it other code after us
                function.__code__ = was.__code__
                vars(function).pop("__wrapped__")
                vars(function).update(vars(was))
            function.__globals__[key] = was

        self.on_restore(undo)
        return True

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Have `undo` called by `restore`."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Put everything back, newest first."""
        for owner, name, original, ours in reversed(self._replaced):
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
        self._replaced.clear()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()


def _is_found_by_name(function: FunctionType) -> bool:
    """Whether a function is what its module holds under its name. What is not is pickled with its code and globals."""
    found: object = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function and function.__module__ != "__main__"


def _copy(function: FunctionType) -> FunctionType:
    """Return another function that does the same."""
    same = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    same.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(same, function)
    del same.__wrapped__  # type: ignore[attr-defined]
    vars(same).update(vars(function))
    return same


def _forwarding(code: CodeType, key: str) -> CodeType:
    """Return code that hands all it gets to the global `key`, for a function with the free variables of `code`.

    A function's code can only be replaced by code with as many free variables: they are named, and not used.
    """
    free = code.co_freevars
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in free):
        raise ValueError(f"{code.co_name} has free variables that cannot be written: {free}")
    name = code.co_name if code.co_name.isidentifier() and not keyword.iskeyword(code.co_name) else "function"
    source = f"""
def around({", ".join(free)}):
    def {name}(*_ncclwatch_args, **_ncclwatch_kwargs):
        return {key}(*_ncclwatch_args, **_ncclwatch_kwargs)
        {", ".join(free) or "pass"}
"""
    around = _code_in(compile(source, __file__, "exec", dont_inherit=True))
    found = _code_in(around)
    if found.co_freevars != free:
        raise ValueError(f"{code.co_name} cannot be given other code: its free variables are {free}")
    return found


def _code_in(code: CodeType) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType))
