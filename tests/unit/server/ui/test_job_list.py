"""The rows of the page of jobs: which, in which order, and what stays unsaid of those without room."""

from dataclasses import replace

import pytest

from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import JobKey
from ncclwatch_server.jobs.job import Job, LaunchFacts, Served
from ncclwatch_server.jobs.outcome import End, Outcome
from ncclwatch_server.jobs.read_model import JobSight, JobStatus, sight_of
from ncclwatch_server.state.job_state import JobState
from ncclwatch_server.ui.job_list import ROWS_MAX, Chosen, Sort, job_list


def sight(name: str, status: JobStatus, at: float = 0.0, ranks: int = 2, **facts: str) -> JobSight:
    key = JobKey(name=name, instance="i", attempt=0)
    job = Job(id=name, key=key, state=JobState(ranks), known_since=0.0, launch_facts=LaunchFacts(at=at, **facts))
    job.served[1] = Served(link=Link(number=1, agent="a", host="gpu-7", version="1"), index=0, terminal=False)
    return replace(sight_of(job, (), 1.0), status=status)


RUNNING = sight("llm", JobStatus.RUNNING, at=3.0, ranks=8, user="ada", labels="team=vision,run=42")
HUNG = sight("127.0.0.1-29500", JobStatus.HUNG, at=1.0, title="train.py", command="train.py --lr 3e-4")
WAITING = sight("vision", JobStatus.WAITING, at=2.0)
DONE = replace(sight("old", JobStatus.ENDED, at=4.0), end=End(outcome=Outcome.COMPLETED))
KILLED = replace(sight("older", JobStatus.ENDED, at=0.5), end=End(outcome=Outcome.HUNG, sentence="s"))
ALL = (RUNNING, HUNG, WAITING, DONE, KILLED)


def shown(**wanted: object) -> list[str]:
    return [row.sight.title for row in job_list(ALL, {}, Chosen(**wanted)).rows]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sort", "titles"),
    [
        (Sort.URGENCY, ["train.py", "vision", "llm", "old", "older"]),
        (Sort.STARTED, ["old", "llm", "vision", "train.py", "older"]),
        (Sort.NAME, ["llm", "old", "older", "train.py", "vision"]),
    ],
)
def test_jobs_are_ordered(sort: Sort, titles: list[str]):
    assert shown(sort=sort) == titles


def test_the_biggest_comes_first_if_that_is_wanted():
    assert shown(sort=Sort.RANKS)[0] == "llm"


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("ADA", ["llm"]),
        ("run=42", ["llm"]),
        ("3e-4", ["train.py"]),
        ("29500", ["train.py"]),
        ("gpu-7", shown()),
        ("nowhere", []),
    ],
)
def test_a_text_is_searched_in_names_users_commands_and_hosts(text: str, titles: list[str]):
    assert shown(text=text) == titles


def test_hung_jobs_are_those_that_hang_and_those_that_were_over_while_they_did():
    assert shown(word="hung") == ["train.py", "older"]
    assert shown(word="completed") == ["old"]


def test_more_jobs_than_rows_are_counted():
    many = [sight(f"job{number}", JobStatus.RUNNING) for number in range(ROWS_MAX + 3)]
    found = job_list(many, {"job0": 2.5}, Chosen(sort=Sort.NAME))
    assert (len(found.rows), found.more, found.total) == (ROWS_MAX, 3, ROWS_MAX + 3)
    assert found.rows[0].steps_per_s == 2.5
