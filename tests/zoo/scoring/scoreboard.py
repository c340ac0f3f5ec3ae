"""Sums up how good the verdicts are over the whole zoo: the table that the README shows, and the same as JSON."""

import importlib.metadata
import math
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.zoo.scoring.verdicts import Score
from tests.zoo.truth import Expect, Truth

QUESTIONS = ("culprit", "cause", "call site", "fix", "certainty")  # about a verdict, in the order of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many of the runs that could answer a question rightly did."""

    right: int
    asked: int

    def __str__(self) -> str:
        return f"{self.right} of {self.asked}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRow:
    """All runs of one program."""

    program: str
    title: str
    expect: str
    nproc: int
    right: Tally
    answers: dict[str, Tally]
    verdict_s: tuple[float, ...]  # onset to verdict of each run that had both
    wall_s: tuple[float, ...]
    faults: tuple[str, ...]  # what was wrong, each once
    known_wrong: str
    culprits: tuple[int, ...] = ()  # as the truth has them
    repairs: tuple[str, ...] = ()  # the smallest repairs that were told, each once


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoreboard:
    """All programs, and the sums over them."""

    machine: str
    torch: str
    runs: int
    right: Tally
    alarmed: Tally  # hangs and crashes that got a critical verdict
    answers: dict[str, Tally]
    verdict_median_s: float | None
    verdict_p99_s: float | None
    verdict_longest_s: float | None
    false_alarms: Tally  # healthy or merely slow runs with a critical verdict; `right` counts the alarms
    programs: tuple[ProgramRow, ...]


def build(truths: Sequence[Truth], scores: Sequence[Score]) -> Scoreboard:
    """Sum up the scores of all runs."""
    rows = tuple(_row(truth, [score for score in scores if score.program == truth.name]) for truth in truths)
    alarming = {truth.name for truth in truths if truth.expect.alarms}
    faulty = [score for score in scores if score.program in alarming]
    controls = [score for score in scores if score.program not in alarming]
    times = sorted(s.onset_to_verdict_s for s in faulty if s.onset_to_verdict_s is not None)
    return Scoreboard(
        machine=_machine(),
        torch=_torch(),
        runs=len(scores),
        right=Tally(right=sum(score.right for score in scores), asked=len(scores)),
        alarmed=_tally(faulty, lambda score: _has(score, "told") and not _wrong(score, "told")),
        answers=_answers(faulty),
        verdict_median_s=statistics.median(times) if times else None,
        verdict_p99_s=times[math.ceil(0.99 * len(times)) - 1] if times else None,
        verdict_longest_s=times[-1] if times else None,
        false_alarms=_tally(controls, lambda score: _wrong(score, "told")),
        programs=rows,
    )


def write(directory: Path, board: Scoreboard) -> str:
    """Write scoreboard.json and scoreboard.md, and say where."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "scoreboard.json").write_bytes(msgspec.json.format(msgspec.json.encode(board)))
    (directory / "scoreboard.md").write_text(markdown(board))
    return f"scoreboard: {directory / 'scoreboard.md'}, {directory / 'scoreboard.json'}"


def markdown(board: Scoreboard) -> str:
    """Render the sums, the programs that were not always right, and all programs."""
    lines = [
        f"{board.runs} runs of {len(board.programs)} programs on {board.machine}, torch {board.torch}, gloo.",
        "",
        "| what | measured |",
        "|---|---|",
        f"| hangs and crashes that got a verdict | {board.alarmed} |",
        *(f"| {question} right | {board.answers[question]} |" for question in QUESTIONS),
        f"| onset to verdict | {_times(board)} |",
        f"| false alarms in healthy programs | {board.false_alarms} |",
        "",
        "| program | ranks | outcome | right | " + " | ".join(QUESTIONS) + " | onset to verdict | run |",
        "|---" * (len(QUESTIONS) + 6) + "|",
        *(_line(row) for row in board.programs),
        "",
        "| program | culprits | the smallest change after which all would have gone on |",
        "|---|---|---|",
        *(
            f"| {row.program} | {', '.join(map(str, row.culprits))} | {'; '.join(row.repairs)} |"
            for row in board.programs
            if row.repairs
        ),
    ]
    return "\n".join(lines) + "\n"


def _row(truth: Truth, scores: Sequence[Score]) -> ProgramRow:
    return ProgramRow(
        program=truth.name,
        title=truth.title,
        expect=truth.expect.value,
        nproc=truth.nproc,
        right=Tally(right=sum(score.right for score in scores), asked=len(scores)),
        answers=_answers(scores) if truth.expect is not Expect.HEALTHY else {},
        verdict_s=tuple(s.onset_to_verdict_s for s in scores if s.onset_to_verdict_s is not None),
        wall_s=tuple(score.wall_s for score in scores),
        faults=tuple(dict.fromkeys(fault for score in scores for fault in score.faults)),
        known_wrong=truth.known_wrong,
        culprits=truth.culprits,
        repairs=tuple(dict.fromkeys(score.repair for score in scores if score.repair)),
    )


def _answers(scores: Sequence[Score]) -> dict[str, Tally]:
    """A question that was not asked of a run, because there was no verdict, is not answered rightly."""
    found = {}
    for question in QUESTIONS:
        asked = [score for score in scores if _has(score, question) or not _judged(score)]
        found[question] = _tally(asked, lambda score, name=question: not _wrong(score, name) and _has(score, name))
    return found


def _tally(scores: Iterable[Score], holds: Callable[[Score], bool]) -> Tally:
    answers = [holds(score) for score in scores]
    return Tally(right=sum(answers), asked=len(answers))


def _judged(score: Score) -> bool:
    return _has(score, "culprit")


def _wrong(score: Score, name: str) -> bool:
    return any(check.name == name and check.wrong for check in score.checks)


def _has(score: Score, name: str) -> bool:
    return any(check.name == name for check in score.checks)


def _line(row: ProgramRow) -> str:
    cells = [str(row.answers[name]) if row.answers and row.answers[name].asked else "-" for name in QUESTIONS]
    after = f"{statistics.median(row.verdict_s):.1f} s" if row.verdict_s else "-"
    run = f"{statistics.median(row.wall_s):.0f} s" if row.wall_s else "-"
    return f"| {row.program} | {row.nproc} | {row.expect} | {row.right} | " + " | ".join([*cells, after, run]) + " |"


def _times(board: Scoreboard) -> str:
    times = {
        "median": board.verdict_median_s,
        "p99": board.verdict_p99_s,
        "longest": board.verdict_longest_s,
    }
    return ", ".join(f"{name} {time_s:.1f} s" for name, time_s in times.items() if time_s is not None) or "-"


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {names[0] if names else platform.machine()}, Python {platform.python_version()}"


def _torch() -> str:
    return importlib.metadata.version("torch")
