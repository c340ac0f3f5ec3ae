"""Put one mistake at a time into the judge, run its tests, and report which mistakes no test noticed.

Each mutant runs in a process of its own, on the tests that run its line, the shortest first. Most are put into a fork
of a process that has collected the tests (`in_place`); what runs when its module is imported needs a fork of one in
which everything but the judge is imported, and is tried on all tests. `python -m tests.mutation --share 0.1 --seed 3`
tries a tenth of the mutants, drawn at random. What was found of each is kept in a file, and the next run goes on after
it. A mutant of a module that has changed since is tried anew; that tests have changed is not noticed (`--again` tries
the survivors once more).
"""

import argparse
import ast
import contextlib
import functools
import hashlib
import importlib.abc
import importlib.util
import io
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.mutation import covering
from tests.mutation.in_place import Mistake, Replaced, Trying, moved, replaced, uses
from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
JUDGE = "ncclwatch_server.judge"
TESTS = (
    "tests/scenarios/test_scenarios.py", "tests/scenarios/test_unknown_members.py", "tests/unit/server/judge",
    "tests/unit/server/state/test_desync.py", "tests/unit/server/state/test_rank_setup.py",
    "tests/unit/server/state/test_saving.py", "tests/unit/server/watch/test_late.py",
    "tests/properties/test_graph_against_a_naive_twin.py", "tests/postmortem",
)  # fmt: skip
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "-m", "not integration")
# A mutant may loop for ever: then it was noticed. Processor time, since other work on the machine is no mistake.
LIMIT_CPU_S = 120
TOLD_EVERY = 50
KILLED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One mutant and where it lives."""

    module: str
    path: Path
    mutant: Mutant


class _Mistaken(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds one module of the judge with a mistake in it."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._case.module:
            return None
        spec = ModuleSpec(fullname, self, origin=str(self._case.path))
        if self._case.path.name == "__init__.py":
            spec.submodule_search_locations = [str(self._case.path.parent)]
        return spec

    def get_source(self, fullname: str) -> str:
        return self._case.mutant.text


def all_cases(folder: Path) -> list[Case]:
    """Return every mutant of every module of the judge."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        module = ".".join((JUDGE, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        found += [Case(module=module, path=path, mutant=mutant) for mutant in mutants(path.read_text())]
    return found


def is_noticed(case: Case, tests: Sequence[str] = ()) -> bool:
    """Run tests, (): all of them, against a mutant and say whether one failed."""
    return _in_a_fork(lambda: _run_tests(case, tests), LIMIT_CPU_S) != 0


def _in_a_fork(work: Callable[[], int], limit_s: float = 0.0) -> int:
    """Return what some work returns in a process of its own, not 0 if it takes longer. 0: it may."""
    child = os.fork()
    if child == 0:
        status = KILLED
        with contextlib.suppress(BaseException):
            signal.setitimer(signal.ITIMER_PROF, limit_s)  # ends this process, which counts as noticed
            silent = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(silent, stream)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                status = work()
        os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended)


def _run_tests(case: Case, tests: Sequence[str]) -> int:
    sys.meta_path.insert(0, _Mistaken(case))
    if not tests:
        return int(pytest.main([*_OPTIONS, *TESTS]))
    files, plugin = covering.chosen(tests)
    return int(pytest.main([*_OPTIONS, *files], plugins=[plugin]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants; print and write the survivors. Returns 1 if the tests fail without any mistake."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--kept", type=Path, default=Path("build/mutants.jsonl"), help="what was found of each, by line"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--again", action="store_true", help="try those once more that no test noticed")
    given = parser.parse_args(arguments)
    os.chdir(ROOT)
    _import_what_is_not_judged()
    cases = all_cases(ROOT / "server/ncclwatch_server/judge")
    measured = given.kept.parent
    measured.mkdir(parents=True, exist_ok=True)
    if _in_a_fork(lambda: covering.measure(ROOT / "server/ncclwatch_server/judge", _OPTIONS, TESTS, measured)) != 0:
        print("the tests fail without any mistake; repair that first")
        return 1
    tests = covering.read(measured)
    chosen = random.Random(given.seed).sample(cases, round(len(cases) * given.share))
    known = _known(given.kept)
    tried = {
        key: row for case in chosen if (row := known.get(key := _key(case))) and (row["noticed"] or not given.again)
    }
    left = [case for case in chosen if _key(case) not in tried]
    until_s = time.monotonic() + given.minutes * 60
    told = _Told(given.kept, len(chosen), tried)
    fit = [(case, *fitting) for case in left if (fitting := _fitting(case, tests)) is not None]
    _try_in_place(fit, told, given.jobs, until_s)
    told.read_again()
    left = [case for case in left if _key(case) not in tried]
    with ThreadPoolExecutor(max_workers=given.jobs) as pool:
        slow = ((case, tests.of(case.path, case.mutant.line)) for case in left)
        for case, noticed in _tried(pool, slow, given.jobs, until_s):
            told(case, noticed)
    survivors = sorted(
        (row["file"], row["line"], row["was"], row["now"]) for row in tried.values() if not row["noticed"]
    )
    print(f"{len(tried) - len(survivors)} of {len(tried)} mistakes noticed (of {len(cases)} in all)")
    for file, line, was, now in survivors:
        print(f"not noticed: {file}:{line}: {was}  ->  {now}")
    return 0


class _Told:
    """Writes down what was found of each mutant, and prints the survivors."""

    def __init__(self, kept: Path, of: int, tried: dict[str, dict[str, Any]]) -> None:
        self._kept, self._of, self._tried = kept, of, tried

    def __call__(self, case: Case, noticed: bool) -> None:
        row = self._tried[_key(case)] = _row(case) | {"key": _key(case), "noticed": noticed}
        with self._kept.open("a") as kept:
            print(json.dumps(row), file=kept)
        if not noticed:
            print("{file}:{line}: {was}  ->  {now}".format(**row), flush=True)
        if len(self._tried) % TOLD_EVERY == 0:
            print(f"{len(self._tried)} of {self._of} tried", flush=True)

    def read_again(self) -> None:
        """Take in what another process has written down."""
        self._tried |= _known(self._kept)


def _fitting(case: Case, tests: covering.Covering) -> tuple[Mistake, Sequence[str]] | None:
    """Return how a mutant is put into a process that has imported the judge, and its tests; None if it cannot be."""
    right, wrong = _plain(case.path), case.mutant.text
    path = str(case.path)
    function = replaced(path, compile(right, path, "exec"), compile(wrong, path, "exec"))
    if function is not None:
        return function, tests.of(case.path, case.mutant.line)
    number = moved(case.module, ast.parse(right), ast.parse(wrong))
    if number is None:
        return None
    lines = {each: uses(each).get(number.name, ()) for each in _judge()}
    if any(0 in found for found in lines.values()):
        return None
    return number, tests.of_any(lines)


@functools.cache
def _plain(path: Path) -> str:
    return ast.unparse(ast.parse(path.read_text()))


@functools.cache
def _judge() -> tuple[Path, ...]:
    return tuple(sorted((ROOT / "server/ncclwatch_server/judge").rglob("*.py")))


def _try_in_place(fit: Sequence[tuple[Case, Mistake, Sequence[str]]], told: _Told, jobs: int, until_s: float) -> None:
    """Try mutants in forks of a process that has collected the tests, which is a fork as well."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    for case, mistake, tests in fit:
        if not tests and isinstance(mistake, Replaced):
            told(case, False)  # no test runs that line

    def tell(number: int, noticed: bool | None) -> None:
        if noticed is not None:
            told(fit[number][0], noticed)

    until = itertools.takewhile(lambda _: time.monotonic() < until_s, fit)
    trying = Trying(
        tries=((mistake, tests) for _, mistake, tests in until), tell=tell, jobs=jobs, limit_cpu_s=LIMIT_CPU_S
    )
    status = KILLED
    with contextlib.suppress(BaseException):
        status = int(pytest.main([*_OPTIONS, "-s", "-q", *TESTS], plugins=[trying]))
    os._exit(status)


def _tried(
    pool: ThreadPoolExecutor, left: Iterator[tuple[Case, Sequence[str]]], at_once: int, until_s: float
) -> Iterator[tuple[Case, bool]]:
    """Yield whether each mutant was noticed, as they come; none is begun after `until_s` on the monotonic clock."""
    running = {pool.submit(is_noticed, *each): each[0] for each in itertools.islice(left, at_once)}
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for each in done:
            yield running.pop(each), each.result()
            if time.monotonic() < until_s and (following := next(left, None)) is not None:
                running[pool.submit(is_noticed, *following)] = following[0]


def _known(kept: Path) -> dict[str, dict[str, Any]]:
    """Return what earlier runs have found, the newest of each mutant."""
    rows = map(json.loads, kept.read_text().splitlines() if kept.exists() else ())
    return {row["key"]: row for row in rows}


def _key(case: Case) -> str:
    return hashlib.sha256(f"{case.module}\n{case.mutant.text}".encode()).hexdigest()


def _row(case: Case) -> dict[str, Any]:
    mutant = case.mutant
    return {"file": str(case.path.relative_to(ROOT)), "line": mutant.line, "was": mutant.was, "now": mutant.now}


def _import_what_is_not_judged() -> None:
    """Import what every test needs, so that each fork begins with it; nothing that imports the judge."""
    for name in ("hypothesis", "msgspec", "numpy", "ncclwatch.contract.model.rank", "ncclwatch.contract.words.text"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert JUDGE not in sys.modules


if __name__ == "__main__":
    sys.exit(main())
