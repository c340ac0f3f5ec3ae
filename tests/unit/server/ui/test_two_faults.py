"""What a reader sees of a job with two faults at once: both, the one that explains most ranks first."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ncclwatch_server.incidents.book import worst_first
from ncclwatch_server.incidents.terminal_text import render
from ncclwatch_server.jobs.rank_states import states_of
from ncclwatch_server.jobs.read_model import JobSight, sight_of
from ncclwatch_server.ui.pages import job_parts
from ncclwatch_server.ui.panel import Panel, panel_of
from ncclwatch_server.ui.step_rate import StepRate
from tests.scenarios.heard import Telling
from tests.scenarios.texts import read

SCENARIO = Path(__file__).parents[3] / "scenarios/p2p_deadlock/roots_circle_beside_a_rank_that_stands_still.txt"


@pytest.fixture(scope="module")
def sight() -> JobSight:
    """Return a job whose ranks 0-3 wait for each other, while rank 7 stands still and ranks 4-6 wait for it."""
    telling = Telling(read(SCENARIO)[0].snapshot(), 0)
    asyncio.run(telling.until_settled())
    # The weaker one first, as it was told last.
    newest_first = tuple(sorted(telling.watch.book.all(), key=lambda each: each.verdict.explained))
    return sight_of(telling.job, newest_first, telling.clock())


@pytest.fixture(scope="module")
def panel(sight: JobSight) -> Panel:
    return panel_of(sight, states_of(sight.picture), StepRate())


def words_of(html: str) -> list[str]:
    """Return what a reader sees of each card."""
    cards = re.findall(r"<article.*?</article>", html, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", card).split()) for card in cards]


def test_the_headline_counts_the_faults_and_begins_with_the_one_that_explains_most_ranks(panel: Panel) -> None:
    assert panel.sentence.startswith("2 faults at once. The first: deadlock of ranks 0-3")


def test_each_card_has_its_own_sentence_and_says_who_waits_for_it(panel: Panel) -> None:
    first, second = words_of(job_parts("job", panel, ())["alarms"])
    assert "deadlock of ranks 0-3" in first and "rank 7" not in first
    assert "ank 7 has made no progress at train.py:40" in second and "ranks 0-3 wait" not in second
    assert "It keeps ranks 4-6 waiting, and explains 3 of 7 blocked ranks." in second


def test_a_terminal_block_names_the_ranks_of_its_own_fault(sight: JobSight) -> None:
    circle, still = map(render, sight.incidents)
    assert "explains 4 of 7 blocked ranks" in circle and "rank 7" not in circle
    assert "  waiting   ranks 4-6\n" in still and "explains 3 of 7 blocked ranks" in still


def test_once_one_of_two_is_over_the_headline_is_that_of_the_other(sight: JobSight) -> None:
    left = replace(sight, incidents=worst_first(sight.incidents[1:]))
    assert panel_of(left, states_of(left.picture), StepRate()).sentence.startswith("rank 7 has made no progress")
