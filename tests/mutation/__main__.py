"""Put one mistake at a time into the judge, run its tests, and report which mistakes no test noticed.

Each mutant runs in a process of its own, forked from one that has collected the tests (`in_place`), on those that run
its line: first what noticed others in its module, then the shortest. Limits that are off by one come last, as many of
them survive that matter little. `python -m tests.mutation --share 0.1 --seed 3` tries a tenth of the mutants, drawn at
random. What was found of each is kept in a file, and the next run goes on after it. A mutant of a module that has
changed since is tried anew; that tests have changed is not noticed (`--again` tries the survivors once more).
"""

import argparse
import ast
import contextlib
import functools
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutation import covering
from tests.mutation.in_place import Mistake, Trying, moved, replaced, uses
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
FIRST = 8  # of the tests that noticed other mistakes of the module
KILLED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One mutant and where it lives."""

    module: str
    path: Path
    mutant: Mutant


def all_cases(folder: Path) -> list[Case]:
    """Return every mutant of every module of the judge."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        module = ".".join((JUDGE, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        found += [Case(module=module, path=path, mutant=mutant) for mutant in mutants(path.read_text())]
    return found


def _in_a_fork(work: Callable[[], int]) -> int:
    """Return what some work returns in a process of its own, which imports the judge and leaves nothing in this one."""
    child = os.fork()
    if child == 0:
        status = KILLED
        with contextlib.suppress(BaseException):
            status = work()
        os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended)


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
    judge = ROOT / "server/ncclwatch_server/judge"
    cases = all_cases(judge)
    measured = given.kept.parent
    measured.mkdir(parents=True, exist_ok=True)
    if _in_a_fork(lambda: covering.measure(judge, _OPTIONS, TESTS, measured)) != 0:
        print("the tests fail without any mistake; repair that first")
        return 1
    tests = covering.read(measured)
    chosen = random.Random(given.seed).sample(cases, round(len(cases) * given.share))
    known = _known(given.kept)
    left = [case for case in chosen if (row := known.get(_key(case))) is None or (given.again and not row["noticed"])]
    fit = [(case, *fitting) for case in left if (fitting := _fitting(case, tests)) is not None]
    fit.sort(key=lambda each: each[0].mutant.bound)
    until_s = time.monotonic() + given.minutes * 60
    if _in_a_fork(lambda: _try(fit, given.kept, given.jobs, until_s)) != 0:
        print(f"pytest ended with an error; what was found is in {given.kept}")
        return 1
    known = _known(given.kept)
    for case in (case for case in chosen if _key(case) not in known):
        print("not tried: {file}:{line}: {was}  ->  {now}".format(**_row(case)))
    survivors = [case for case in chosen if not known.get(_key(case), {}).get("noticed", True)]
    for case in sorted(survivors, key=lambda case: (case.path, case.mutant.line)):
        print("not noticed: {file}:{line}: {was}  ->  {now}".format(**_row(case)))
    tried = sum(_key(case) in known for case in chosen)
    print(f"{tried - len(survivors)} of {tried} mistakes noticed (of {len(cases)} in all)")
    return 0


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


def _try(fit: Sequence[tuple[Case, Mistake, Sequence[str]]], kept: Path, jobs: int, until_s: float) -> int:
    """Try mutants on their tests until a time on the monotonic clock; returns pytest's status."""
    told = 0
    noticing: dict[
        Path, dict[str, None]
    ] = {}  # by module: the tests that noticed other mistakes there, the newest last

    def tell(number: int, noticed: bool | None, by: str) -> None:
        nonlocal told
        if noticed is None:
            return
        told += 1
        case = fit[number][0]
        if by:
            newest = noticing.setdefault(case.path, {})
            newest.pop(by, None)
            newest[by] = None
        row = _row(case) | {"key": _key(case), "noticed": noticed}
        with kept.open("a") as file:
            print(json.dumps(row), file=file)
        if not noticed:
            print("{file}:{line}: {was}  ->  {now}".format(**row), flush=True)
        if told % TOLD_EVERY == 0:
            print(f"{told} of {len(fit)} tried", flush=True)

    def tries() -> Iterator[tuple[Mistake, Sequence[str]]]:
        for case, mistake, tests in fit:
            if time.monotonic() >= until_s:
                return
            first = [test for test in reversed(noticing.get(case.path, {})) if test in set(tests)][:FIRST]
            yield mistake, (*first, *(test for test in tests if test not in first))

    trying = Trying(tries=tries(), tell=tell, jobs=jobs, limit_cpu_s=LIMIT_CPU_S)
    status = int(pytest.main([*_OPTIONS, "-s", *TESTS], plugins=[trying]))
    print(f"{told} of {len(fit)} tried")
    return status


def _known(kept: Path) -> dict[str, dict[str, Any]]:
    """Return what earlier runs have found, the newest of each mutant."""
    rows = map(json.loads, kept.read_text().splitlines() if kept.exists() else ())
    return {row["key"]: row for row in rows}


def _key(case: Case) -> str:
    return hashlib.sha256(f"{case.module}\n{case.mutant.text}".encode()).hexdigest()


def _row(case: Case) -> dict[str, Any]:
    mutant = case.mutant
    return {"file": str(case.path.relative_to(ROOT)), "line": mutant.line, "was": mutant.was, "now": mutant.now}


if __name__ == "__main__":
    sys.exit(main())
