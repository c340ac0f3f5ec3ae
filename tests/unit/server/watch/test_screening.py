"""Of many jobs those of which something shows are looked at now, and the others in their turn."""

from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.registry import Jobs
from ncclwatch_server.watch.screening import Screening
from tests.unit.server.jobs.test_registry import announce
from tests.unit.server.server_values import digest

JOBS = 5 * limits.FEW_JOBS


def many(count: int = JOBS) -> tuple[Jobs, list[Job]]:
    """Return jobs of which nothing shows, each looked at just now, at 20.0."""
    jobs = Jobs()
    found = []
    for number in range(count):
        link = Link(number=number, agent=f"a{number}", host=f"h{number}", version="1")
        job = announce(jobs, link, job=f"job{number:05d}")
        digest(job.state, number, 20.0, {0: 0.0})
        job.state.fold(20.0)
        job.stirred = False
        job.settle(20.0)
        found.append(job)
    return jobs, found


def awake(jobs: Jobs, now: float) -> list[Job]:
    return Screening().awake(jobs.all(), now)


def test_few_jobs_are_all_looked_at() -> None:
    jobs, found = many(limits.FEW_JOBS)
    assert awake(jobs, 20.1) == found


def test_of_many_jobs_none_is_looked_at_while_nothing_shows() -> None:
    jobs, _ = many()
    assert awake(jobs, 20.1) == []


def test_a_job_is_looked_at_when_a_row_shows_a_wait_or_an_end_or_it_had_news() -> None:
    jobs, found = many()
    digest(found[3].state, 3, 20.1, {0: limits.WAIT_S + 0.1})
    digest(found[5].state, 5, 20.1, {0: 0.0}, ended=(0,))
    found[7].stirred = True
    assert {job.id for job in awake(jobs, 20.2)} == {"job00003", "job00005", "job00007"}


def test_a_job_whose_agent_is_quiet_is_looked_at() -> None:
    jobs, found = many()
    now = 20.1 + limits.SILENT_S / 2
    for number, job in enumerate(found):
        job.settle(now)
        if number != 9:
            digest(job.state, number, now, {0: 0.0})
    assert [job.id for job in awake(jobs, now)] == ["job00009"]


def test_every_job_has_its_turn_and_not_all_at_once() -> None:
    jobs, found = many(2 * limits.CALM_LOOKS_PER_S)
    screening, looked = Screening(), []
    for step in range(40):
        now = 20.0 + 0.2 * step
        for number, job in enumerate(found):
            digest(job.state, number, now, {0: 0.0})
        turn = screening.awake(jobs.all(), now)
        assert len(turn) <= limits.FEW_JOBS + limits.CALM_LOOKS_PER_S
        for job in turn:
            job.settle(now)
        looked += turn
    assert {job.id for job in looked} == {job.id for job in found}
    assert len(looked) <= 6 * len(found)
