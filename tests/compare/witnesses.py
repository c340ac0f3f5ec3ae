"""Runs a program of the zoo under each tool, once, and returns what the tool says."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.compare import said
from tests.compare.said import Said
from tests.zoo import plain
from tests.zoo.jobs import Job, environment_of, stacks, torchrun
from tests.zoo.runner import run
from tests.zoo.scoring import report
from tests.zoo.truth import Truth

IN_RANK = Path(__file__).with_name("in_rank")
ASKED_S = 10.0  # after the onset somebody looks at the job; nobody is that fast, so it favours the tool
TIMEOUT_S = 30.0  # of the groups, where a tool speaks when it is over; torch's own is 10 or 30 minutes
DUMP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Testimony:
    """What one tool said of one program."""

    said: Said
    after_s: float | None  # from the onset until it was said; None: it was asked, or said nothing
    cause: bool = False  # whether it named the kind of mistake as the zoo calls it
    alarmed: bool = False  # whether it called the job wrong


def by_ncclwatch(truth: Truth, directory: Path) -> Testimony:
    """Run it under ncclwatch."""
    score = run(truth, directory)
    found = report.read(directory / "report.json")
    critical = list(found.critical) if isinstance(found, report.Report) else []
    culprits = critical[0].culprits if critical else ()
    sites = [each.call_site for each in culprits if each.call_site is not None]
    return Testimony(
        said=Said(
            ranks=frozenset(each.rank for each in culprits),
            places=frozenset((Path(site.file).name, site.line) for site in sites),
            failed=found.reason if isinstance(found, report.Unreadable) else "",
        ),
        after_s=score.onset_to_verdict_s,
        cause=bool(critical) and critical[0].cause in truth.cause,
        alarmed=bool(critical),
    )


def by_looking(truth: Truth, directory: Path) -> dict[str, Testimony]:
    """Run it alone; some time after the onset, take stacks of all ranks and the dumps of all Flight Recorders."""
    extra = {"TORCH_FR_BUFFER_SIZE": "2000", **_environment(directory)}
    own = own_files(truth)
    with Job(torchrun(truth.program, truth.nproc, truth.arguments), directory, extra) as job:
        _wait(lambda: job.onset_at() is not None or job.exit_code is not None, truth.timeout_s)
        onset_at = job.onset_at()
        if onset_at is None or job.exit_code is not None:
            return {}
        time.sleep(max(0.0, onset_at + ASKED_S - time.time()))
        pids = {int(rank): pid for pid in job.processes() if (rank := _is_rank(pid)) is not None}
        seen = {rank: stacks(pid) for rank, pid in pids.items()}
        (directory / "dump").touch()
        _wait(lambda: len(list(directory.glob("repaired/fr_*"))) >= truth.nproc, DUMP_S)
    return {
        "flight recorder": _asked(_analysed(directory / "raw", own)),
        "repaired": _asked(_analysed(directory / "repaired", own)),
        "py-spy": _asked(said.of_stacks(seen, own)),
    }


def by_detail(truth: Truth, directory: Path) -> Testimony:
    """Run it with TORCH_DISTRIBUTED_DEBUG=DETAIL and a short timeout."""
    extra = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "COMPARE_TIMEOUT_S": str(TIMEOUT_S), **_environment(directory)}
    with Job(torchrun(truth.program, truth.nproc, truth.arguments), directory, extra) as job:
        error, spoke_at = directory / "stderr", None
        deadline = time.monotonic() + truth.timeout_s
        while time.monotonic() < deadline and job.exit_code is None:
            if spoke_at is None and error.exists() and said.of_detail(error.read_text(errors="replace")).ranks:
                spoke_at = time.time()
                deadline = min(deadline, time.monotonic() + 5.0)  # the other ranks have their say
            time.sleep(0.2)
        exit_code = job.exit_code
        job.kill()
        onset_at, ended_at = job.onset_at(), time.time()
    found = said.of_detail(error.read_text(errors="replace"))
    spoke_at = spoke_at or (ended_at if found.ranks else None)
    return Testimony(
        said=found, after_s=spoke_at - onset_at if spoke_at is not None and onset_at is not None else None,
        alarmed=bool(found.ranks or found.failed) or bool(exit_code),
    )  # fmt: skip


def _analysed(dumps: Path, own: tuple[str, ...]) -> Said:
    analysed = subprocess.run(
        [Path(sys.executable).with_name("torchfrtrace"), str(dumps), "-p", "fr_"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    printed = analysed.stdout + analysed.stderr
    (dumps / "torchfrtrace").write_text(printed)
    return said.of_flight_recorder(printed, own)


def own_files(truth: Truth) -> tuple[str, ...]:
    """Return the names of the files that a user of the program wrote."""
    return tuple(path.name for path in truth.program.parent.glob("*.py"))


def _asked(found: Said) -> Testimony:
    return Testimony(said=found, after_s=None, alarmed=bool(found.ranks))


def _environment(directory: Path) -> dict[str, str]:
    """Return the environment in which a program runs without ncclwatch and dumps when it is asked."""
    stub = directory / "stub"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "ncclwatch.py").write_text(plain.STUB)
    for name in ("raw", "repaired"):
        (directory / name).mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, (str(stub), str(IN_RANK), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "COMPARE_DIR": str(directory)}


def _is_rank(pid: int) -> str | None:
    """Return the rank that a process is, None for loaders and others below it, which inherit the variable."""
    own = environment_of(pid).get("RANK")
    try:
        parent = psutil.Process(pid).ppid()
    except psutil.Error:
        return None
    return own if own is not None and environment_of(parent).get("RANK") != own else None


def _wait(condition: Callable[[], bool], most_s: float) -> None:
    deadline = time.monotonic() + most_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
