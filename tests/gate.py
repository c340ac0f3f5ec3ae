"""Runs the stages of `make test` and sums up what failed: `python -m tests.gate lint integration --live integration`.

A stage is a target of the Makefile; all stages run, whatever failed before. A live test starts real processes, so it
may fail because the machine was busy: what failed runs once more, alone. A test that passes then is reported as
unstable, and more than a few of them in one run are a failure; tests that failed in one shared set-up count as one.
All tests of a live stage are live; of another stage, those that started a process while they ran (`tests/live.py`).
Others are deterministic and never run twice.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.live import STARTED_A_PROCESS

UNSTABLE_MAX = 5  # of one run, over all of its stages
SLOW_FILES = 12  # listed in the summary
REPORTS = Path("build/gate")
TESTS_FAILED = 1  # pytest's exit status; others mean that it could not run, or was stopped


class Stage(NamedTuple):
    """The result of a stage."""

    name: str
    passed: bool
    seconds: float
    failures: dict[str, str] = {}  # noqa: RUF012 - node id: first line of its error
    unstable: dict[str, str] = {}  # noqa: RUF012 - the same of tests that passed when they ran again


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages and print the summary; returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.gate", description=__doc__)
    parser.add_argument("stages", nargs="+", help="targets of the Makefile, in order")
    parser.add_argument("--live", action="append", default=[], help="a stage whose failed tests run once more, alone")
    given = parser.parse_args(arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    done: list[Stage] = []
    for name in given.stages:
        print(f"=== {name}", flush=True)
        first = _run(name, ["make", "--no-print-directory", name, f"PYTEST_ARGS=--report-log={_report(name)}"])
        repeated = sum(_causes(stage.name, stage.unstable) for stage in done) + _causes(name, first.failures)
        live = name in given.live or first.failures.keys() <= _that_started_a_process(_report(name))
        may_repeat = not first.passed and live and 0 < repeated <= UNSTABLE_MAX
        done.append(_again(first) if may_repeat and first.failures else first)
    print(summary(done), flush=True)
    return 0 if all(stage.passed for stage in done) else 1


def summary(stages: Sequence[Stage]) -> str:
    """Return a table of the stages, then each failure with the command that repeats it."""
    lines = ["", f"{'stage':<18}{'result':<10}{'seconds':>8}"]
    lines += [f"{each.name:<18}{'ok' if each.passed else 'FAILED':<10}{each.seconds:>8.0f}" for each in stages]
    lines += [f"slow: {seconds:>4.0f} s  {file}" for file, seconds in _slowest(stages)]
    lines += [f"unstable: {test}: {told}" for stage in stages for test, told in stage.unstable.items()]
    for stage in stages:
        if stage.passed:
            continue
        if not stage.failures:
            lines.append(f"FAILED {stage.name}\n    make {stage.name}")
        alike = Counter(_file_and_error(test, told) for test, told in stage.failures.items())
        for test, told in stage.failures.items():
            others = alike.pop(_file_and_error(test, told), 0) - 1
            if others >= 0:
                lines.append(f"FAILED {test}: {told}\n    {shlex.join(_pytest(test))}")
            if others > 0:
                lines.append(f"    {others} more of this file with the same error")
    return "\n".join([*lines, "", "all green" if all(stage.passed for stage in stages) else "not green"])


def _that_started_a_process(report: Path) -> set[str]:
    return {said["nodeid"] for said in _lines(report) if [STARTED_A_PROCESS, True] in said.get("user_properties", ())}


def _causes(stage: str, failed: dict[str, str]) -> int:
    """Count failures. A fixture that is shared by the tests of a file fails once for all of them."""
    in_setup = {each["nodeid"] for each in _lines(_report(stage)) if _failed(each) and each.get("when") == "setup"}
    return len({_file_and_error(test, told) if test in in_setup else (test, "") for test, told in failed.items()})


def _file_and_error(test: str, told: str) -> tuple[str, str]:
    return test.partition("::")[0], told


def _failed(said: dict[str, Any]) -> bool:
    return said.get("outcome") == "failed"


def failures(report: Path) -> dict[str, str] | None:
    """Read which tests failed, and the first line of each error; None if pytest did not run to its end.

    The format is that of pytest-reportlog: a JSON object a line, `SessionFinish` last.
    """
    failed: dict[str, str] = {}
    status = None
    for said in _lines(report):
        if _failed(said):
            failed.setdefault(said["nodeid"], _first_line(said.get("longrepr")))
        status = said.get("exitstatus", status)
    return failed if status in (0, TESTS_FAILED) else None


def seconds_by_file(report: Path) -> Counter[str]:
    """Return the seconds that each test file took, set-up and tear-down included."""
    seconds: Counter[str] = Counter()
    for said in _lines(report):
        if said.get("$report_type") == "TestReport":
            seconds[said["nodeid"].partition("::")[0]] += said["duration"]
    return seconds


def _lines(report: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


def _slowest(stages: Sequence[Stage]) -> list[tuple[str, float]]:
    total: Counter[str] = Counter()
    for stage in stages:
        total.update(seconds_by_file(_report(stage.name)))
    return total.most_common(SLOW_FILES)


def _first_line(error: object) -> str:
    """Return what pytest's own summary shows of an error: text, or an object with `reprcrash`."""
    if isinstance(error, dict):
        error = (error.get("reprcrash") or {}).get("message")
    lines = str(error or "").strip().splitlines()
    return lines[0][:200] if lines else "no error was reported"


def _again(first: Stage) -> Stage:
    """Run what failed once more, one test after the other and nothing beside it."""
    name = f"{first.name}-again"
    print(f"=== {first.name}: {len(first.failures)} failed; once more, alone", flush=True)
    again = _run(name, _pytest(f"--report-log={_report(name)}", *first.failures))
    unstable = {test: told for test, told in first.failures.items() if test not in again.failures}
    seconds = first.seconds + again.seconds
    if again.passed:
        return Stage(first.name, True, seconds, unstable=unstable)
    return Stage(first.name, False, seconds, again.failures or first.failures, unstable if again.failures else {})


def _run(name: str, command: list[str]) -> Stage:
    _report(name).unlink(missing_ok=True)
    began = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    # Without a complete report there is nothing that could run again, and the stage itself is what failed.
    return Stage(name, code == 0, time.monotonic() - began, failures(_report(name)) or {})


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


def _report(name: str) -> Path:
    return REPORTS / f"{name}.jsonl"


if __name__ == "__main__":
    sys.exit(main())
