"""Which attempts belong together, and which hangs of them are the same."""

from dataclasses import replace

import pytest
from msgspec.json import decode, encode

from ncclwatch.cli.client import answers
from ncclwatch.cli.running import following
from ncclwatch.contract.model.rank import ProcessState
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch_server.incidents.aftermath import cost, follows, hang_of, is_restart, lost_s, same_before, words
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey
from ncclwatch_server.incidents.report import report_incident
from ncclwatch_server.judge.telling.evidence import culprit
from tests.unit.server.server_values import KEY, VERDICT, verdict, view


@pytest.mark.parametrize(
    ("changes", "does"),
    [
        pytest.param({"attempt": 1}, True, id="torchrun started it again"),
        pytest.param({"attempt": 3}, True, id="more than once"),
        pytest.param({}, False, id="itself"),
        pytest.param({"attempt": 1, "name": "other"}, False, id="another job"),
        pytest.param({"attempt": 1, "instance": "host:2"}, False, id="another launch of the name"),
        pytest.param({"run": 1}, False, id="started again by hand"),
        pytest.param({"run": 1, "attempt": 1}, False, id="by hand, and then again by torchrun"),
        pytest.param({"instance": "host:9/x#1"}, True, id="requeued, or by ncclwatch run"),
        pytest.param({"instance": "host:9/x#0"}, False, id="another launch that counts none"),
        pytest.param({"instance": "host:9/x#one"}, False, id="a run that is called so"),
    ],
)
def test_an_attempt_follows_another_one_by_the_count_of_what_started_it_again(changes: dict, does: bool) -> None:
    later = replace(KEY, **changes)
    assert follows(later, KEY) is does
    assert not follows(KEY, later)
    assert not does or is_restart(later)


@pytest.mark.parametrize(
    ("earlier", "later", "does"),
    [
        pytest.param("a:1/run-7", "a:2/run-7", True, id="at another port"),
        pytest.param("a:1/run-7", "b:1/run-7", True, id="at another node"),
        pytest.param("a:1/x/y", "b:2/x/y", True, id="a run id with a slash"),
        pytest.param("a:1/run-7", "a:2/run-8", False, id="another run"),
        pytest.param("a:1/none", "a:2/none", False, id="runs that were given no id"),
        pytest.param("a:1/", "a:2/", False, id="no torchrun"),
        pytest.param("a:1", "a:2", False, id="no run"),
        pytest.param("a:1/run-7#1", "a:2/run-7#1", True, id="both of one requeue"),
    ],
)
def test_ranks_of_one_torchrun_may_meet_elsewhere_in_each_attempt(earlier: str, later: str, does: bool) -> None:
    first = replace(KEY, instance=earlier)
    assert follows(replace(KEY, instance=later, attempt=1), first) is does
    assert not follows(replace(KEY, instance=later), first), "somebody has started it again by hand"
    assert not follows(replace(KEY, instance=earlier), replace(KEY, instance=later, attempt=1))


def test_a_debugger_that_holds_a_rank_is_known_to_who_decides_what_is_done() -> None:
    """From the state of the process to the hang that a policy is asked about."""
    for state, traced in ((ProcessState.TRACED, True), (ProcessState.STOPPED, False)):
        seen = view(2)
        seen = replace(seen, process=replace(seen.process, state=state))
        found = replace(
            hang(0), verdict=replace(VERDICT, culprits=(culprit(view(1), None, ""), culprit(seen, None, "")))
        )
        assert hang_of(found).traced is traced
        assert following.hang_of(decode(encode(report_incident(found)), type=answers.Incident)).traced is traced


def hang(attempt: int, opened_at: float = 0.0, **changes: object) -> Incident:
    return replace(
        Incident(
            id=f"i{attempt}", key=replace(KEY, attempt=attempt), job="job", world_size=4, state=IncidentState.ENDED,
            verdict=VERDICT, onset_to_open_s=1.0, opened_at=opened_at,
        ),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_same_hang_is_found_in_the_newest_attempt_that_had_it() -> None:
    first, second, third = hang(0, 10.0), hang(1, 20.0), hang(2, 30.0)
    assert same_before(third, (first, second, third)) == second
    assert same_before(first, (first, second, third)) is None
    other = replace(second, verdict=verdict(Cause.PROCESS_FROZEN))
    assert same_before(third, (first, other)) == first
    for no_hang in (
        replace(second, state=IncidentState.RESOLVED),
        replace(second, verdict=replace(VERDICT, severity=Severity.WARNING)),
        replace(second, verdict=replace(VERDICT, predicted=True)),
    ):
        assert same_before(third, (no_hang,)) is None


def test_what_became_of_a_hang_is_said_in_words_and_what_is_unknown_is_not() -> None:
    assert words(hang(0)) == ""
    assert words(hang(0, recovered_after_s=41.2)) == "recovered after 41 s"
    assert words(hang(0, recovered_after_s=8.5, came_back_as="b")) == "recovered after 8.5 s; came back as b"
    assert words(hang(1, came_back_from="a")) == "came back, was a"


def test_a_job_that_was_never_started_again_is_no_restart() -> None:
    assert not is_restart(JobKey(name="job", instance="host:1/run", attempt=0))


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        pytest.param({"state": IncidentState.OPEN}, 31.0, id="open: until now"),
        pytest.param({"closed_at": 115.0}, 16.0, id="until the job had ended"),
        pytest.param({"closed_at": 115.0, "state": IncidentState.RESOLVED}, 16.0, id="until it went on by itself"),
        pytest.param({"closed_at": 115.0, "recovered_after_s": 25.0}, 25.0, id="until it went on, started again"),
        pytest.param({"closed_at": 115.0, "end_seen": False}, None, id="nobody saw the end"),
        pytest.param({"verdict": replace(VERDICT, severity=Severity.WARNING)}, None, id="nothing hung"),
        pytest.param({"verdict": replace(VERDICT, predicted=True)}, None, id="nothing hung yet"),
    ],
)
def test_time_is_lost_from_the_onset_of_a_hang_until_its_job_goes_on_or_ends(changes: dict, lost: float | None) -> None:
    assert lost_s(hang(0, 100.0, **changes), 130.0) == lost


def test_a_cost_is_in_gpu_hours_only_where_ranks_had_gpus() -> None:
    over = hang(0, 100.0, closed_at=459.0)
    assert cost(over, 0.0) == "6 min of 4 ranks: 0.4 rank-hours"
    assert cost(replace(over, gpus=2), 0.0) == "6 min of 4 ranks: 0.2 GPU-hours"
    assert cost(replace(over, world_size=16384, gpus=16384), 0.0) == "6 min of 16384 ranks: 1,638 GPU-hours"
    assert cost(replace(over, end_seen=False), 0.0) == ""
