"""Put one mistake at a time into the judge, run its tests, and report which mistakes no test noticed.

Each mutant runs in a process of its own that was forked from one in which everything but the judge is imported
already. `python -m tests.mutation --share 0.1 --seed 3` tries a tenth of them, drawn at random.
"""

import argparse
import contextlib
import importlib.abc
import importlib.util
import io
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
JUDGE = "ncclwatch_server.judge"
TESTS = (
    "tests/scenarios/test_scenarios.py", "tests/scenarios/test_unknown_members.py", "tests/unit/server/judge",
    "tests/unit/server/state/test_desync.py", "tests/unit/server/state/test_rank_setup.py",
    "tests/unit/server/state/test_saving.py", "tests/unit/server/watch/test_late.py",
    "tests/properties/test_graph_against_a_naive_twin.py",
)  # fmt: skip
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


def is_noticed(case: Case) -> bool:
    """Run the tests against a mutant and say whether one failed."""
    child = os.fork()
    if child == 0:
        status = KILLED
        with contextlib.suppress(BaseException):
            signal.setitimer(signal.ITIMER_PROF, LIMIT_CPU_S)  # ends this process, which counts as noticed
            status = _run_tests(case)
        os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended) != 0


def _run_tests(case: Case) -> int:
    sys.meta_path.insert(0, _Mistaken(case))
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *TESTS]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants; print and write the survivors. Returns 1 if the tests fail without any mistake."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, default=Path("build/mutants.json"))
    given = parser.parse_args(arguments)
    os.chdir(ROOT)
    _import_what_is_not_judged()
    cases = all_cases(ROOT / "server/ncclwatch_server/judge")
    sound = Case(module="", path=ROOT, mutant=Mutant(line=0, was="", now="", text=""))
    if is_noticed(sound):
        print("the tests fail without any mistake; repair that first")
        return 1
    chosen = random.Random(given.seed).sample(cases, round(len(cases) * given.share))
    rows = []
    with ThreadPoolExecutor(max_workers=given.jobs) as pool:
        for tried, (case, seen) in enumerate(zip(chosen, pool.map(is_noticed, chosen), strict=True), start=1):
            if not seen:
                row = _row(case)
                print(f"{row['file']}:{row['line']}: {row['was']}  ->  {row['now']}", flush=True)
                rows.append(row)
            if tried % TOLD_EVERY == 0:
                print(f"{tried} of {len(chosen)} tried", flush=True)
    rows.sort(key=lambda row: (row["file"], row["line"]))
    print(f"{len(chosen) - len(rows)} of {len(chosen)} mistakes noticed (of {len(cases)} in all)")
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps({"tried": len(chosen), "of": len(cases), "survivors": rows}, indent=1))
    return 0


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
