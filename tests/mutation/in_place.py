"""Puts mistakes into modules that are imported already, one in each fork, and runs collected tests there.

A fork that imports the judge and collects the tests needs seconds; one that replaces a function's code, or a number,
needs none. What runs while a module is imported cannot be changed that way.
"""

import ast
import contextlib
import functools
import gc
import inspect
import os
import signal
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from _pytest.runner import runtestprotocol

_FUNCTION = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS


_UNFIT = 77  # exit status of a fork in which the mistake could not be made


class Mistake(Protocol):
    """What is wrong in a fork."""

    def put(self) -> bool:
        """Make the mistake in this process. False: it cannot be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The code of one function with a mistake in it, and where the function lives."""

    file: str
    code: types.CodeType

    def put(self) -> bool:
        """Replace the code of the function, and of those that it made on import. False: it is not there once."""
        functions = self._living(self.code)
        inside = [(made, code) for code in _inside(self.code) for made in self._living(code)]
        pairs = [*((each, self.code) for each in functions), *inside]
        if len(functions) != 1 or len({id(made) for made, _ in inside}) != len(inside):
            return False  # two lambdas of one function share a name
        if any(made.__code__.co_freevars != code.co_freevars for made, code in pairs):
            return False
        for made, code in pairs:
            made.__code__ = code
        return True

    def _living(self, code: types.CodeType) -> list[types.FunctionType]:
        return _functions().get((self.file, code.co_qualname), [])


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from _inside(each)


def replaced(file: str, right: types.CodeType, wrong: types.CodeType) -> Replaced | None:
    """Return the one function in which two modules differ. None: what runs when they are imported differs as well."""
    changed = _changed_functions(right, wrong)
    if changed is None or len(changed) != 1:
        return None
    return Replaced(file=file, code=changed[0])


def _changed_functions(right: types.CodeType, wrong: types.CodeType) -> list[types.CodeType] | None:
    if (right.co_code, right.co_names, len(right.co_consts)) != (wrong.co_code, wrong.co_names, len(wrong.co_consts)):
        return None
    changed = []
    for before, after in zip(right.co_consts, wrong.co_consts, strict=True):
        if not isinstance(before, types.CodeType) or not isinstance(after, types.CodeType):
            if (type(before), before) != (type(after), after):
                return None
        elif before != after:
            if after.co_flags & _FUNCTION == _FUNCTION:
                changed.append(after)
                continue
            inside = _changed_functions(before, after)  # of a class
            if inside is None:
                return None
            changed += inside
    return changed


@functools.cache
def _functions() -> dict[tuple[str, str], list[types.FunctionType]]:
    found: dict[tuple[str, str], list[types.FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType):
            found.setdefault((each.__code__.co_filename, each.__code__.co_qualname), []).append(each)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A number of a module, with another value."""

    module: str
    name: str
    value: float

    def put(self) -> bool:
        """Change it in its module and wherever it was imported to."""
        right = vars(sys.modules[self.module])[self.name]
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(self.name) is right:
                setattr(module, self.name, self.value)
        return True


def moved(module: str, right: ast.Module, wrong: ast.Module) -> Moved | None:
    """Return the number that is assigned differently in two modules, None if anything else differs."""
    pairs = [pair for pair in zip(right.body, wrong.body, strict=True) if ast.dump(pair[0]) != ast.dump(pair[1])]
    match pairs:
        case [(_, ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() | float() as value)))]:
            return Moved(module=module, name=name, value=value)
    return None


@functools.cache
def uses(path: Path) -> Mapping[str, Sequence[int]]:
    """Return in which lines of a file each name is read in a function; [0] where it is read at import as well."""
    tree = ast.parse(path.read_text())
    read: dict[str, list[int]] = {}
    inside: set[int] = set()
    for function in (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)):
        for each in (within for statement in function.body for within in ast.walk(statement)):
            inside.add(id(each))
    for each in ast.walk(tree):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            read.setdefault(each.id, []).append(each.lineno if id(each) in inside else 0)
    return {name: [0] if 0 in lines else lines for name, lines in read.items()}


@dataclass(kw_only=True)
class Trying:
    """A pytest plugin that, in place of its tests, tries mistakes on those of them that are given for each.

    `tries` yields (mistake, node ids of its tests, in order), the next one once there is a process for it. `tell` gets
    a mistake's number, whether it was noticed, None if it cannot be put in, and by which test, "" if that is not known.
    """

    tries: Iterable[tuple[Mistake, Sequence[str]]]
    tell: Callable[[int, bool | None, str], None]
    jobs: int
    limit_cpu_s: int

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork once for each mistake."""
        items = {item.nodeid: item for item in session.items}
        gc.unfreeze()  # conftest.py froze them, and what is frozen is not listed
        _functions()
        gc.freeze()
        running: dict[int, tuple[int, int]] = {}  # by process: the mistake's number, where to read which test failed
        for number, (mistake, tests) in enumerate(self.tries):
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                status = _UNFIT
                with contextlib.suppress(BaseException):
                    status = self._try(mistake, [items[test] for test in tests if test in items], writing)
                os._exit(status)
            os.close(writing)
            running[child] = number, reading
            if len(running) >= self.jobs:
                self._wait(running)
        while running:
            self._wait(running)
        return True

    def _wait(self, running: dict[int, tuple[int, int]]) -> None:
        child, ended = os.wait()
        status = os.waitstatus_to_exitcode(ended)
        number, reading = running.pop(child)
        with os.fdopen(reading) as failed:
            self.tell(number, None if status == _UNFIT else status != 0, failed.read())

    def _try(self, mistake: Mistake, tests: list[pytest.Item], writing: int) -> int:
        silent = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silent, stream)
        if not mistake.put():
            return _UNFIT
        signal.setitimer(signal.ITIMER_PROF, self.limit_cpu_s)  # ends this process, which counts as noticed
        try:
            failed = next((item for item, following in _with_next(tests) if _fails(item, following)), None)
        except BaseException:  # noqa: BLE001 - of a test or its fixtures, because of the mistake
            return 1
        if failed is not None:
            os.write(writing, failed.nodeid.encode())
        return int(failed is not None)


def _fails(item: pytest.Item, following: pytest.Item | None) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def _with_next(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True)
