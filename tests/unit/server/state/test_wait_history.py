"""What a job has done before: robust bounds, bounded memory, and what waits under way teach."""

import math
import random
from dataclasses import replace

import pytest

from ncclwatch.contract.model.job import WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity, Verdict
from ncclwatch_server.state.waits import history
from ncclwatch_server.state.waits.history import JobHabits, Lesson, Memory, bound_s
from ncclwatch_server.state.waits.learning import Patience
from tests.unit.server.server_values import verdict

STEP, SAVE, VALIDATE = (
    WaitClass(phase=phase, op="barrier", size=2) for phase in (Phase.STEP, Phase.CHECKPOINT, Phase.VALIDATION)
)


def test_without_any_wait_nothing_is_unusual() -> None:
    assert bound_s(()) == math.inf


@pytest.mark.parametrize("count", [1, 2, 29])
def test_few_waits_allow_three_times_the_longest(count: int) -> None:
    assert bound_s([2.0] * (count - 1) + [7.0]) == 21.0


def test_from_thirty_waits_on_the_deviation_of_the_logarithms_counts() -> None:
    # ln 2 +- ln 2 / 3 in equal parts: the median absolute deviation is ln 2 / 3.
    waits = [2.0 * 2 ** (1 / 3)] * 15 + [2.0 * 2 ** (-1 / 3)] * 15
    assert bound_s(waits) == pytest.approx(2.0 * 2.0 ** (6 * 1.4826 / 3), rel=1e-9)
    assert bound_s([2.0] * 30) == 6.0


def test_one_outlier_among_many_raises_the_bound_by_its_quantile_only() -> None:
    waits = [2.0] * 199 + [100.0]
    assert 3 * 2.0 < bound_s(waits) < 3 * 100.0


def test_a_wide_distribution_does_not_allow_for_days() -> None:
    generator = random.Random(1)
    waits = [math.exp(generator.gauss(1.0, 3.0)) for _ in range(150)]
    assert bound_s(waits) <= history.BOUND_FACTOR_MAX * max(waits) * (1 + 1e-9)


def test_waits_of_the_same_distribution_stay_below_the_bound() -> None:
    generator = random.Random(2)
    waits = [math.exp(generator.gauss(1.5, 0.4)) for _ in range(100)]
    bound = bound_s(waits)
    later = [math.exp(generator.gauss(1.5, 0.4)) for _ in range(20_000)]
    assert sum(wait > bound for wait in later) == 0


def test_a_lesson_keeps_the_newest_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT_MAX", 3)
    lesson = Lesson(kind=STEP)
    for waited in (9.0, 1.0, 2.0, 3.0):
        lesson = lesson.with_wait(waited, waited / 2)
    assert (lesson.waits, lesson.durations_s, lesson.longest_still_s) == (4, (1.0, 2.0, 3.0), 4.5)
    assert lesson.habit().longest_s == 3.0


def test_how_long_a_rank_stands_still_several_times_is_no_accident() -> None:
    lesson = Lesson(kind=SAVE)
    for still in (90.0, 5.0):
        lesson = lesson.with_wait(100.0, still)
    assert lesson.habit().often_still_s == 0.0
    for still in (80.0, 85.0):
        lesson = lesson.with_wait(100.0, still)
    assert (lesson.habit().longest_still_s, lesson.habit().often_still_s) == (90.0, 80.0)


def test_the_class_that_taught_nothing_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "CLASSES_MAX", 2)
    job = JobHabits()
    for kind in (STEP, SAVE, STEP, VALIDATE):
        job.learn(kind, 5.0, 0.0)
    assert set(job.habits) == {STEP, VALIDATE}


def test_a_job_of_the_same_name_finds_its_habits_again_and_the_number_of_names_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "JOBS_MAX", 2)
    memory = Memory({"old": [Lesson(kind=SAVE).with_wait(40.0, 0.0)]})
    memory.of("a").learn(STEP, 5.0, 0.0)
    assert memory.of("old").habits[SAVE].longest_s == 40.0
    memory.of("b")
    assert not memory.of("a").habits, "the oldest name is forgotten"


def test_what_a_store_brings_is_bounded_and_the_namespace_with_most_jobs_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "JOBS_MAX", 3)
    lessons = [Lesson(kind=SAVE).with_wait(40.0, 0.0)]
    memory = Memory({f"a/{n}": lessons for n in range(1000)} | {"b/1": lessons})
    assert [name for name, _ in memory.lessons()] == ["a/998", "a/999", "b/1"]
    memory.of("a/now").learn(STEP, 5.0, 0.0)
    memory.recall({"a/old": lessons, "c/1": lessons})
    assert {name for name, _ in memory.lessons()} == {"b/1", "c/1", "a/now"}


def late(kind: WaitClass, onset_s: float, seq: int = 7, still_s: float = 0.0) -> Verdict:
    return verdict(
        certainty=Certainty.LATE, severity=Severity.INFO, waited=kind, onset_s=onset_s, seq=seq, still_s=still_s
    )


def test_a_rank_that_somebody_stopped_teaches_nothing() -> None:
    patience = Patience()
    for hour in range(3):
        began = 3600.0 * hour
        patience.see([late(STEP, 5.0, hour)], began)
        stopped = late(STEP, 600.0, hour, 590.0)
        patience.see([replace(stopped, cause=Cause.PROCESS_FROZEN, severity=Severity.CRITICAL)], began + 600)
        patience.see([late(STEP, 601.0, hour)], began + 601)
        assert patience.see([], began + 602) == ()
    assert not patience.habits
    patience.see([late(STEP, 5.0)], 20_000.0)
    assert [lesson.waits for lesson in patience.see([], 20_001.0)] == [1]


def test_a_wait_teaches_when_it_is_over_and_not_before() -> None:
    patience = Patience()
    assert patience.see([late(SAVE, 2.0)], 100.0) == ()
    assert patience.see([late(SAVE, 12.0, still_s=3.0)], 110.0) == ()
    (lesson,) = patience.rest(110.5)
    assert (lesson.kind, lesson.durations_s, lesson.longest_still_s) == (SAVE, (12.5,), 3.0)
    assert patience.rest(111.0) == ()
    assert patience.habits[SAVE].waits == 1


def test_the_next_wait_ends_the_one_before() -> None:
    patience = Patience()
    patience.see([late(SAVE, 9.0)], 100.0)
    (lesson,) = patience.see([late(STEP, 1.0, seq=8)], 101.0)
    assert (lesson.kind, lesson.durations_s) == (SAVE, (10.0,))


def test_one_thing_after_another_is_learned_by_itself() -> None:
    patience = Patience()
    patience.see([late(VALIDATE, 60.0)], 100.0)
    patience.see([late(SAVE, 62.0)], 102.0)
    assert set(patience.under_way["0", 7]) == {VALIDATE, SAVE}
    patience.see([late(SAVE, 65.0)], 105.0)
    lessons = {lesson.kind: lesson.durations_s for lesson in patience.rest(105.0)}
    assert lessons == {VALIDATE: (60.0,), SAVE: (5.0,)}


def test_a_wait_that_a_hang_takes_over_teaches_nothing() -> None:
    patience = Patience()
    patience.see([late(STEP, 9.0)], 100.0)
    assert patience.see([verdict()], 101.0) == ()
    assert patience.rest(102.0) == ()
    assert not patience.habits


def test_a_wait_for_ranks_that_are_not_heard_any_more_teaches_nothing_and_stays_known() -> None:
    patience, lost = Patience(), frozenset({1})
    patience.see([late(SAVE, 9.0)], 100.0)
    assert patience.see([], 101.0, lost) == ()
    assert patience.see([verdict()], 102.0, lost) == ()
    assert patience.under_way["0", 7] == (SAVE,)
    assert patience.see([], 400.0) == ()
    assert not patience.under_way
    assert not patience.habits


def test_a_wait_that_goes_on_when_its_ranks_are_heard_again_teaches_its_whole_length() -> None:
    patience = Patience()
    patience.see([late(SAVE, 9.0)], 100.0)
    patience.see([], 101.0, frozenset({1}))
    patience.see([late(SAVE, 39.0)], 130.0)
    (lesson,) = patience.see([], 131.0, frozenset({3}))
    assert (lesson.kind, lesson.durations_s) == (SAVE, (40.0,))


def test_a_rank_that_came_to_the_wait_late_does_not_count_twice() -> None:
    patience = Patience()
    patience.see([late(STEP, 9.0)], 100.0)
    patience.see([late(STEP, 1.0)], 101.0)  # another rank came to wait: the wait counts from it
    patience.see([late(STEP, 4.0)], 104.0)
    (lesson,) = patience.rest(104.0)
    assert lesson.durations_s == (12.0,)
