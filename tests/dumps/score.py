"""Judges drawn jobs by their files and by their live views, and counts how often the truth was told.

What is right is said by `Blame` alone: every root is named for certain and nobody else; where no evidence decides, it
is right to name nobody for certain. An analysis comes in as a function from a folder to what it said.
"""

import gc
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from pathlib import Path

from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge import judge
from tests.dumps.faults import QUIET, Blame, Case, What, draw_case
from tests.dumps.flight_recorder import Form, write
from tests.dumps.live import snapshot
from tests.postmortem.analysis import said

ONE_FAULT = tuple(what.value for what in What)
TWO_FAULTS = (
    *(f"{what.value}+{what.value}" for what in What), "host_stopped+device_dead", "host_stopped+call_skipped",
    "host_stopped+link_down",
)  # fmt: skip
KINDS = (*ONE_FAULT, *TWO_FAULTS, *QUIET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an analysis said of a job."""

    certain: frozenset[int] = frozenset()
    one_of: frozenset[int] = frozenset()
    causes: tuple[str, ...] = ()

    @property
    def anything(self) -> bool:
        """Whether it said that something is wrong."""
        return bool(self.causes)


class Grade(str, Enum):
    """How right an answer is."""

    RIGHT = "right"
    PARTLY = "partly"  # roots only, and not all of them
    SILENT = "silent"  # nobody is named
    WRONG = "wrong"  # somebody who is no root


@dataclass(slots=True)
class Tally:
    """The answers to one kind of case."""

    grades: Counter[Grade] = field(default_factory=Counter)
    blamed: int = 0  # cases in which an innocent was named for certain
    named: int = 0  # cases in which anybody was named for certain
    causes: Counter[str] = field(default_factory=Counter)
    missed: list[int] = field(default_factory=list)  # seeds

    def add(self, case: Case, answer: Said) -> None:
        """Count one answer."""
        given = grade(case, answer)
        self.grades[given] += 1
        self.blamed += blames_an_innocent(case, answer)
        self.named += bool(answer.certain)
        self.causes.update(answer.causes)
        if given is not Grade.RIGHT:
            self.missed.append(case.seed)

    @property
    def right(self) -> float:
        """The share of right answers."""
        return self.grades[Grade.RIGHT] / max(1, self.grades.total())


@dataclass(slots=True)
class Row:
    """All that was counted for one kind."""

    kind: str
    files: Tally = field(default_factory=Tally)
    live: Tally = field(default_factory=Tally)
    rival: Tally = field(default_factory=Tally)
    agree: int = 0  # cases in which files and live views named the same


Analysis = Callable[[Path], Said]
Rival = Callable[[Path], tuple[Said, ...]]  # the readings of its words
_ORDER = tuple(Grade)


def grade(case: Case, answer: Said) -> Grade:
    """Say how right an answer is."""
    if case.is_quiet:
        return Grade.WRONG if blames_an_innocent(case, answer) else Grade.RIGHT
    suspects = frozenset(rank for blame in case.blames for rank in (*blame.suspects, *blame.ranks))
    if answer.one_of <= suspects and _is_right(case.blames, answer):
        return Grade.RIGHT if answer.anything or not case.blames else Grade.SILENT
    if not answer.certain and not answer.one_of:
        return Grade.SILENT
    return Grade.PARTLY if answer.certain <= case.roots and answer.one_of <= suspects else Grade.WRONG


def _is_right(blames: Iterable[Blame], answer: Said) -> bool:
    choices = [_right_answers(blame, answer) for blame in blames]
    return any(answer.certain == frozenset().union(*chosen) for chosen in product(*choices))


def _right_answers(blame: Blame, answer: Said) -> tuple[frozenset[int], ...]:
    covered = blame.undecidable and blame.ranks <= answer.one_of
    return (*blame.answers, frozenset()) if covered else blame.answers


def blames_an_innocent(case: Case, answer: Said) -> bool:
    """Say whether somebody was named for certain whom no right answer names."""
    allowed = frozenset(rank for blame in case.blames for each in blame.answers for rank in each)
    return not answer.certain <= allowed


def by_files(folder: Path) -> Said:
    """Ask `ncclwatch analyze`."""
    incidents = said(folder)["incidents"]
    gc.enable()  # the command turns it off, as its process ends soon
    sure = [each for each in incidents if _is_sure(each["certainty"], each["one_of"], each["predicted"])]
    return Said(
        certain=frozenset(culprit["rank"] for each in sure for culprit in each["culprits"]),
        one_of=frozenset(c["rank"] for each in incidents if each not in sure for c in each["culprits"]),
        causes=tuple(each["cause"] for each in incidents),
    )


def by_views(case: Case) -> Said:
    """Ask the judge of live jobs."""
    verdicts = judge(snapshot(case))
    sure = [each for each in verdicts if _is_sure(each.certainty.value, each.one_of, each.predicted)]
    return Said(
        certain=frozenset(culprit.rank for each in sure for culprit in each.culprits),
        one_of=frozenset(c.rank for each in verdicts if each not in sure for c in each.culprits),
        causes=tuple(each.cause.value for each in verdicts),
    )


def _is_sure(certainty: str, one_of: bool, predicted: bool) -> bool:
    return certainty != Certainty.LATE.value and not one_of and not predicted


def score(
    kinds: Iterable[str], seeds: Iterable[int], *, world: int = 16, form: Form = Form(), analysis: Analysis = by_files,
    rival: Rival | None = None,
) -> list[Row]:  # fmt: skip
    """Draw cases, ask everybody and count."""
    chosen = tuple(seeds)
    return [_row(kind, chosen, world, form, analysis, rival) for kind in kinds]


def _row(kind: str, seeds: tuple[int, ...], world: int, form: Form, analysis: Analysis, rival: Rival | None) -> Row:
    row = Row(kind=kind)
    for seed in seeds:
        case = draw_case(kind, seed, world)
        with tempfile.TemporaryDirectory(prefix="ncclwatch-dumps-") as name:
            folder = write(case, Path(name), form)
            files, live = analysis(folder), by_views(case)
            if rival is not None:
                row.rival.add(case, min(rival(folder), key=lambda answer: _ORDER.index(grade(case, answer))))
        row.files.add(case, files)
        row.live.add(case, live)
        row.agree += (files.certain, files.one_of) == (live.certain, live.one_of)
    return row
