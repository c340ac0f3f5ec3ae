"""What a server notes of a hang when its job has been started again, and what it leaves open."""

from dataclasses import dataclass, field, replace

import pytest

from ncclwatch.contract import wire
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState, Opening
from ncclwatch_server.incidents.event_stream import Announcements, News, What
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.registry import Jobs
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.counters import Counters
from ncclwatch_server.watch.hangs.restarts import Restarts
from ncclwatch_server.watch.publisher import Publisher
from tests.unit.server.server_values import VERDICT, digest

WALL = 1000.0  # of the server's start, at 0 s of its clock


@dataclass
class Scene:
    now: float = 0.0
    jobs: Jobs = field(default_factory=Jobs)
    book: IncidentBook = field(default_factory=IncidentBook)
    news: list[News] = field(default_factory=list)

    def __post_init__(self) -> None:
        heard = Announcements()
        heard.tell = lambda what, incident: self.news.append(News(number=0, what=what, incident=incident))  # type: ignore[method-assign]
        self.counters = Counters()
        self.publisher = Publisher(NoStore(), self.counters, heard)
        self.restarts = Restarts(self.book, self.publisher, lambda: self.now, lambda: WALL + self.now)
        self.link = Link(number=1, agent="a", host="h", version="1")

    def attempt(self, number: int, at_s: float, instance: str = "i") -> Job:
        self.now = at_s
        said = wire.Announce(
            index=number, job="job", instance=instance, attempt=number, world_size=2, ranks=(0, 1), terminal=False
        )
        return self.jobs.announce(self.link, said, at_s)

    def hang(self, job: Job, at_s: float) -> Incident:
        """Open an incident that is reported 2 s after its onset."""
        opening = Opening(key=job.key, job=job.id, world_size=2, verdict=replace(VERDICT, onset_s=2.0))
        incident = self.book.open(opening, WALL + at_s)
        assert incident is not None
        return incident

    def end(self, job: Job, at_s: float) -> None:
        self.book.close(job.key, IncidentState.ENDED, WALL + at_s)
        job.release()

    def step(self, job: Job, at_s: float, completed: int = 5) -> None:
        self.now = at_s
        digest(job.state, 1, at_s, {0: 0.0, 1: 0.0}, enqueued=completed + 1)
        job.state.fold(at_s)
        self.restarts.look(job, self.jobs.all())


def hung_and_started_again(onset_s: float = 100.0) -> tuple[Scene, Job, str]:
    scene = Scene()
    first = scene.attempt(0, 50.0)
    incident = scene.hang(first, onset_s + 2.0)
    second = scene.attempt(1, onset_s + 20.0)
    scene.end(first, onset_s + 21.0)
    return scene, second, incident.id


def after_s(scene: Scene, incident: str) -> float | None:
    found = scene.book.get(incident)
    assert found is not None
    return found.recovered_after_s


def test_a_hang_is_recovered_from_when_every_rank_of_the_next_attempt_has_completed_something() -> None:
    scene, second, incident = hung_and_started_again()
    scene.step(second, 130.0, completed=0)
    assert after_s(scene, incident) is None
    scene.step(second, 141.0)
    assert after_s(scene, incident) == 41.0
    scene.step(second, 150.0)
    assert after_s(scene, incident) == 41.0
    assert [(each.what, each.incident.id) for each in scene.news] == [(What.RECOVERED, incident)]


def test_a_hang_that_is_still_judged_is_recovered_from_once_its_attempt_is_over() -> None:
    scene = Scene()
    first = scene.attempt(0, 50.0)
    incident = scene.hang(first, 102.0)
    second = scene.attempt(1, 120.0)
    scene.step(second, 141.0)
    assert after_s(scene, incident.id) is None
    scene.end(first, 142.0)
    scene.step(second, 143.0)
    assert after_s(scene, incident.id) == 41.0


@pytest.mark.parametrize(("ended_s", "known"), [(120.0, True), (145.0, True), (160.0, False)])
def test_a_job_that_ran_beside_one_that_hung_under_the_same_run_id_is_not_its_next_attempt(
    ended_s: float, known: bool
) -> None:
    scene = Scene()
    first = scene.attempt(0, 50.0, "a:1/100")
    incident = scene.hang(first, 102.0)
    second = scene.attempt(1, 118.0, "a:2/100")
    scene.step(second, 141.0)
    scene.end(first, ended_s)
    scene.step(second, ended_s + 1.0)
    assert (after_s(scene, incident.id) is not None) is known
    again = scene.hang(second, 144.0)
    scene.step(second, ended_s + 2.0)
    found = scene.book.get(again.id)
    assert found is not None
    assert (found.came_back_from == incident.id) is known


@pytest.mark.parametrize(("paused_s", "known"), [(limits.RESTART_S, True), (limits.RESTART_S + 1.0, False)])
def test_a_job_that_comes_much_later_is_not_known_to_be_the_one_that_hung(paused_s: float, known: bool) -> None:
    scene = Scene()
    first = scene.attempt(0, 50.0)
    incident = scene.hang(first, 102.0)
    scene.end(first, 110.0)
    second = scene.attempt(1, 110.0 + paused_s)
    scene.step(second, 115.0 + paused_s)
    assert (after_s(scene, incident.id) is not None) is known


@pytest.mark.parametrize(("heard_s", "known"), [(limits.COME_BACK_S, False), (limits.COME_BACK_S + 1.0, True)])
def test_a_server_that_was_started_since_does_not_know_when_an_attempt_began_that_it_finds(
    heard_s: float, known: bool
) -> None:
    scene = Scene()
    first = Scene().attempt(0, 0.0)  # of the server before
    incident = scene.hang(first, -30.0)
    scene.end(first, -20.0)
    second = scene.attempt(1, heard_s)
    scene.step(second, heard_s + 5.0)
    assert (after_s(scene, incident.id) is not None) is known


def test_what_ended_by_itself_and_what_was_no_hang_is_not_recovered_from_by_a_restart() -> None:
    scene, second, incident = hung_and_started_again()
    known = scene.book.get(incident)
    assert known is not None
    scene.book.amend(replace(known, state=IncidentState.RESOLVED))
    scene.step(second, 141.0)
    assert after_s(scene, incident) is None


def test_the_same_hang_in_the_next_attempt_has_come_back_and_each_names_the_other() -> None:
    scene, second, first_id = hung_and_started_again()
    scene.step(second, 141.0)
    scene.news.clear()
    again = scene.hang(second, 162.0)
    scene.step(second, 163.0)
    scene.step(second, 164.0)
    first, later = scene.book.get(first_id), scene.book.get(again.id)
    assert first is not None
    assert later is not None
    assert (first.came_back_as, later.came_back_from) == (again.id, first_id)
    assert (first.recovered_after_s, later.recovered_after_s) == (41.0, None)
    assert [(each.what, each.incident.id) for each in scene.news] == [
        (What.CHANGED, first_id), (What.CHANGED, again.id)
    ]  # fmt: skip


def test_the_last_words_of_an_attempt_may_say_that_its_hang_had_come_back() -> None:
    scene, second, first_id = hung_and_started_again()
    again = scene.hang(second, 130.0)
    scene.end(second, 131.0)
    scene.restarts.over(second)
    later = scene.book.get(again.id)
    assert later is not None
    assert later.came_back_from == first_id


def test_the_hangs_of_a_first_attempt_are_compared_with_nothing() -> None:
    scene = Scene()
    first = scene.attempt(0, 50.0)
    incident = scene.hang(first, 102.0)
    scene.step(first, 110.0)
    scene.restarts.over(first)
    assert scene.book.get(incident.id) == incident
    assert scene.news == []


def test_what_hangs_have_cost_is_counted_when_they_end_and_until_their_job_goes_on_again() -> None:
    scene, second, incident = hung_and_started_again()
    known = scene.book.get(incident)
    assert known is not None
    known = scene.book.amend(replace(known, gpus=1))
    scene.publisher.closed(known)
    costs = scene.counters.costs[VERDICT.cause.value]
    assert (costs.lost_s, costs.rank_s, costs.gpu_s, costs.recovered) == (21.0, 42.0, 21.0, 0)
    scene.step(second, 141.0)
    assert (costs.lost_s, costs.rank_s, costs.gpu_s, costs.recovered) == (41.0, 82.0, 41.0, 1)
    again = scene.hang(second, 162.0)
    scene.step(second, 163.0)
    assert costs.came_back == 1
    reopened = replace(again, reopened_at=WALL + 170.0)
    scene.publisher.closed(scene.book.end(reopened, IncidentState.RESOLVED, WALL + 172.0))
    assert costs.lost_s == 43.0, "until it was opened again nothing hung"
    scene.publisher.closed(replace(scene.book.end(reopened, IncidentState.ENDED, WALL + 900.0), end_seen=False))
    assert costs.lost_s == 43.0, "nobody knows when it ended"
