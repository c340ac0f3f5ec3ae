"""The scoring of the zoo sees each kind of wrong verdict, and accepts the right one."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.zoo.jobs import Ended
from tests.zoo.scoring.report import CallSite, Culprit, Incident, Report, Slowness, Unreadable
from tests.zoo.scoring.verdicts import score
from tests.zoo.truth import Expect, Marker, Root, Side, Truth, TruthError, load_all, resolve

PROGRAM = """\
def save():
    barrier()

def train():
    save()
    barrier()
"""
ABORTED = Ended(
    exit_code=70, wall_s=9.0, onset_at=100.0, verdict_at=102.5, leftovers=(), last_words="ncclwatch: CRITICAL"
)
HEALTHY = replace(ABORTED, exit_code=0, onset_at=None, verdict_at=None, last_words="")


@pytest.fixture
def truth(tmp_path: Path) -> Truth:
    program = tmp_path / "z99_example.py"
    program.write_text(PROGRAM)
    return Truth(
        id="z99",
        title="Rank 0 is alone in a barrier",
        nproc=3,
        expect=Expect.HANG,
        confirmed="It hangs.",
        cause=("rank_conditional_collective",),
        culprits=(0,),
        advice_any=("all ranks",),
        sides=(Side(ranks=(0,), op="barrier", call_site=(Marker(function="save", code="barrier()"),)),),
        program=program,
    )


def verdict(rank: int = 0, line: int = 2, **other: str) -> Incident:
    culprit = Culprit(rank=rank, call_site=CallSite(file="/home/user/z99_example.py", line=line))
    right = Incident(
        cause="rank_conditional_collective",
        severity="critical",
        advice="Call it on ALL ranks.",
        culprits=(culprit,),
        victims=(1, 2),
    )
    return replace(right, **other)  # type: ignore[arg-type]  # only texts are replaced here


def wrong(truth: Truth, ended: Ended, *incidents: Incident) -> list[str]:
    result = score(truth, ended, Report(schema=1, incidents=incidents))
    return [check.name for check in result.checks if check.wrong]


def test_a_right_verdict_has_no_fault(truth: Truth) -> None:
    result = score(truth, ABORTED, Report(schema=1, incidents=(verdict(),)))
    assert result.right
    assert result.onset_to_verdict_s == 2.5


def test_a_wrong_cause_line_or_advice_is_seen(truth: Truth) -> None:
    assert wrong(truth, ABORTED, verdict(cause="transport")) == ["cause"]
    assert wrong(truth, ABORTED, verdict(line=6)) == ["call site"]
    assert wrong(truth, ABORTED, verdict(advice="Raise the timeout.")) == ["fix"]


def test_of_two_faults_each_has_to_be_told_and_in_any_order(truth: Truth) -> None:
    two = replace(truth, besides=(Root(cause=("p2p_deadlock",), culprits=(1, 2)),))
    second = verdict(rank=1, cause="p2p_deadlock")
    assert wrong(two, ABORTED, verdict(), second) == []
    assert wrong(two, ABORTED, second, verdict()) == []
    assert wrong(two, ABORTED, verdict()) == ["beside"]
    assert wrong(truth, ABORTED, verdict(), second) == ["victims"]


def test_a_blamed_victim_is_seen_also_in_a_second_incident(truth: Truth) -> None:
    assert wrong(truth, ABORTED, verdict(rank=1)) == ["culprit", "call site", "victims"]
    assert wrong(truth, ABORTED, verdict(), verdict(rank=2)) == ["victims"]


def test_a_prediction_is_right_if_it_names_the_ranks_before_the_onset(truth: Truth) -> None:
    foretold = replace(truth, foretold=True)
    early = replace(verdict(severity="warning", opened_at="1970-01-01T00:01:30+00:00"), predicted=True)
    late = replace(early, opened_at="1970-01-01T00:01:41+00:00")

    assert score(foretold, ABORTED, Report(schema=1, incidents=(early, verdict()))).foretold_s == 10.0
    assert wrong(foretold, ABORTED, early, verdict()) == []
    assert wrong(foretold, ABORTED, late, verdict()) == ["foretold"]
    assert wrong(foretold, ABORTED, replace(early, predicted=False), verdict()) == ["foretold"]
    assert wrong(foretold, ABORTED, replace(early, cause="transport"), verdict()) == ["foretold"]


def test_a_prediction_for_a_healthy_job_is_wrong(truth: Truth) -> None:
    healthy = replace(truth, expect=Expect.HEALTHY)

    assert wrong(healthy, HEALTHY, replace(verdict(severity="warning"), predicted=True)) == ["foretold"]


def test_any_of_several_culprits_is_right_only_where_the_truth_says_so(truth: Truth) -> None:
    both = replace(truth, culprits=(0, 1))
    assert wrong(both, ABORTED, verdict()) == ["culprit"]
    assert wrong(replace(both, culprits_any=True), ABORTED, verdict()) == []


def test_a_missed_hang_is_seen_and_a_warning_does_not_count(truth: Truth) -> None:
    silent = replace(ABORTED, verdict_at=None, exit_code=0)
    assert wrong(truth, silent) == ["outcome", "told"]
    assert wrong(truth, silent, verdict(severity="warning")) == ["outcome", "told"]


def test_a_job_that_is_not_aborted_or_leaves_processes_is_seen(truth: Truth) -> None:
    assert wrong(truth, replace(ABORTED, exit_code=None), verdict()) == ["outcome"]
    assert wrong(truth, replace(ABORTED, leftovers=("17 ncclwatch-agent",)), verdict()) == ["clean"]


def test_a_false_alarm_is_seen_and_a_warning_is_none(truth: Truth) -> None:
    control = replace(truth, expect=Expect.HEALTHY, culprits=(), cause=(), advice_any=(), sides=())
    assert wrong(control, HEALTHY) == []
    assert wrong(control, HEALTHY, verdict(severity="warning")) == []
    assert wrong(control, HEALTHY, verdict()) == ["outcome"]
    assert wrong(control, replace(HEALTHY, exit_code=1)) == ["outcome"]


def test_a_missing_report_tells_how_the_command_ended(truth: Truth) -> None:
    ended = replace(ABORTED, last_words="no such option: --report")
    result = score(truth, ended, Unreadable(reason="no report was written"))
    assert result.faults == ("outcome: no report was written (it ended with 'no such option: --report')",)


def test_a_wrong_certainty_is_seen_where_the_truth_names_one(truth: Truth) -> None:
    proven = replace(truth, certainty=("PROVEN",))
    assert wrong(truth, ABORTED, verdict(certainty="STALLED")) == []
    assert wrong(proven, ABORTED, verdict(certainty="STALLED")) == ["certainty"]
    assert wrong(proven, ABORTED, verdict(certainty="PROVEN")) == []


def test_a_slow_job_wants_a_warning_that_names_the_rank_and_no_alarm(truth: Truth) -> None:
    slow = replace(truth, expect=Expect.SLOW)
    assert wrong(slow, HEALTHY, verdict(severity="warning")) == []
    assert wrong(slow, HEALTHY, verdict(severity="warning", cause="transport")) == ["cause"]
    assert wrong(slow, HEALTHY) == ["outcome"]
    assert wrong(slow, HEALTHY, verdict(severity="info")) == ["outcome"]
    assert wrong(slow, ABORTED, verdict()) == ["outcome", "told"]


def test_what_makes_a_rank_slow_is_scored_and_a_healthy_rank_is_not_to_be_called_slow(truth: Truth) -> None:
    slow = replace(truth, expect=Expect.SLOW, slow_kind=("gpu", "compute"))
    said = verdict(severity="warning")
    assert wrong(slow, HEALTHY, replace(said, slowness=Slowness(kind="compute"))) == []
    assert wrong(slow, HEALTHY, replace(said, slowness=Slowness(kind="network"))) == ["slow kind"]
    assert wrong(slow, HEALTHY, said) == ["slow kind"]

    control = replace(truth, expect=Expect.HEALTHY, culprits=(), cause=(), advice_any=(), sides=())
    assert wrong(control, HEALTHY, replace(said, slowness=Slowness(kind="compute"))) == ["outcome"]
    assert wrong(control, HEALTHY, replace(verdict(severity="info"), slowness=Slowness(kind="compute"))) == []


def test_a_marker_must_mean_one_line(truth: Truth) -> None:
    assert resolve(Marker(function="train", code="barrier()"), truth.program).number == 6
    with pytest.raises(TruthError, match="on 2 lines"):
        resolve(Marker(code="    barrier()"), truth.program)
    with pytest.raises(TruthError, match="0 functions"):
        resolve(Marker(function="absent", code="barrier()"), truth.program)


def test_an_unknown_program_is_told_with_those_that_exist() -> None:
    with pytest.raises(TruthError, match="no program called nope; there are: c01"):
        load_all(("nope",))
