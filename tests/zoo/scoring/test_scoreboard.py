"""The scoreboard counts what happened, and nothing as right that was never said."""

from dataclasses import replace
from pathlib import Path

from tests.zoo.scoring.verdicts import Check, Score
from tests.zoo.truth import Expect, Truth

from . import scoreboard

HANG = Truth(id="z98", title="It hangs", nproc=2, expect=Expect.HANG, confirmed="It does.", program=Path("z98_hang.py"))
CONTROL = Truth(
    id="c98", title="It is well", nproc=2, expect=Expect.HEALTHY, confirmed="It is.", program=Path("c98_ok.py")
)
NAMES = ("outcome", "told", "culprit", "cause", "call site", "fix", "certainty", "victims", "clean")


def run(program: str, *wrong: str, asked: tuple[str, ...] = NAMES, verdict_s: float | None = 2.0) -> Score:
    checks = tuple(Check(name=name, wrong="it is" if name in wrong else "") for name in asked)
    return Score(program=program, checks=checks, onset_to_verdict_s=verdict_s, wall_s=10.0)


def test_answers_are_counted_over_all_runs() -> None:
    board = scoreboard.build([HANG], [run("z98_hang"), run("z98_hang", "cause"), run("z98_hang", verdict_s=8.0)])
    assert str(board.right) == "2 of 3"
    assert str(board.answers["cause"]) == "2 of 3"
    assert str(board.answers["culprit"]) == "3 of 3"
    assert (board.verdict_median_s, board.verdict_longest_s) == (2.0, 8.0)


def test_a_missed_hang_answers_no_question_rightly() -> None:
    missed = run("z98_hang", "outcome", "told", asked=("outcome", "told", "clean"), verdict_s=None)
    board = scoreboard.build([HANG], [missed])
    assert str(board.alarmed) == "0 of 1"
    assert str(board.answers["culprit"]) == "0 of 1"


def test_a_question_that_the_truth_leaves_open_is_not_counted() -> None:
    open_certainty = run("z98_hang", asked=tuple(name for name in NAMES if name != "certainty"))
    assert str(scoreboard.build([HANG], [open_certainty]).answers["certainty"]) == "0 of 0"


def test_a_false_alarm_is_counted_among_the_controls() -> None:
    well = run("c98_ok", asked=("outcome", "told", "clean"), verdict_s=None)
    alarm = run("c98_ok", "outcome", "told", asked=("outcome", "told", "clean"), verdict_s=None)
    board = scoreboard.build([HANG, CONTROL], [run("z98_hang"), well, alarm])
    assert str(board.false_alarms) == "1 of 2"


def test_the_smallest_repair_of_each_hang_is_listed_beside_its_truth() -> None:
    told = [replace(run("z98_hang"), repair="rank 1 skipped barrier") for _ in range(2)]
    table = scoreboard.markdown(scoreboard.build([replace(HANG, culprits=(1,)), CONTROL], [*told, run("c98_ok")]))
    assert table.endswith("| z98_hang | 1 | rank 1 skipped barrier |\n")


def test_both_files_are_written(tmp_path: Path) -> None:
    board = scoreboard.build(
        [HANG, CONTROL], [run("z98_hang"), run("c98_ok", asked=("outcome", "told"), verdict_s=None)]
    )
    scoreboard.write(tmp_path / "build", board)
    table = (tmp_path / "build" / "scoreboard.md").read_text()
    assert "| z98_hang | 2 | hang | 1 of 1 |" in table
    assert "| c98_ok | 2 | healthy | 1 of 1 | - | - | - | - | - | - | 10 s |" in table
    assert (tmp_path / "build" / "scoreboard.json").stat().st_size > 0
