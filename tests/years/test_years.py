"""Simulated days of healthy jobs wake nobody, faults are named, and the simulation shows what agents would."""

import asyncio
import logging
import math
import random

import pytest

from tests.scenarios.through_rings import read_back
from tests.years import noise
from tests.years.day import Played, Playing, healthy
from tests.years.faults import play
from tests.years.figures import quantile, upper_bound
from tests.years.plans import draw
from tests.years.sights import Counts, Sights
from tests.years.stretches import Stretch
from tests.years.virtual_time import VirtualLoop


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def day(seed: int, days: float = 0.2) -> Played:
    return Playing(seed, (2, 4)).run(lambda playing: healthy(playing, days))


def told(played: Played) -> list[tuple[float, str, str]]:
    return [(said.at_s, said.verdict.severity.value, said.verdict.summary) for said in played.said]


@pytest.mark.parametrize("seed", [1, 3])
def test_nobody_is_woken_in_a_day_of_a_healthy_job(seed: int) -> None:
    played = day(seed)
    assert ([said.verdict.summary for said in played.said if said.critical], played.failures) == ([], 0)


def test_the_same_seed_plays_the_same() -> None:
    assert told(day(2, 0.05)) == told(day(2, 0.05))


def test_time_that_is_left_out_changes_no_incident() -> None:
    async def story(playing: Playing) -> None:
        for what in (noise.starts, noise.save, noise.hiccup, noise.validation):
            await playing.happens(what)

    dense, sparse = (Playing(5, (2,), dense=dense).run(story) for dense in (True, False))
    opened = [{(said.verdict.cause, said.critical) for said in played.said} for played in (dense, sparse)]
    assert opened[0] == opened[1]
    assert dense.judgements > sparse.judgements


@pytest.mark.parametrize("seed", [500_000_001 + number for number in range(6)])
def test_what_a_fault_touches_is_named_and_nobody_else(seed: int) -> None:
    outcome = play(seed)
    assert (outcome.wrong, outcome.early) == ((), ())
    assert outcome.verdict is not None or outcome.fault in ("endless loop", "dead link")


def test_a_digest_says_what_an_agent_reads_from_a_ring() -> None:
    rng = random.Random(7)
    stretch = Stretch(draw(rng, 7, (4,)), Counts(), rng)
    noise.stretch_with(stretch, noise.validation_of_one)
    sights: Sights = stretch.carried_out(7, 0)
    for rank in range(4):
        at_s = sights.run.rest_s * 0.4
        row, groups = sights.row(rank, at_s)
        read = read_back(sights.view(rank, at_s))
        assert row[4:11] == pytest.approx(read.row[4:11], abs=0.01)
        assert [each[2:] for each in groups] == [each[2:] for each in read.groups]


def test_nothing_in_so_many_days_bounds_a_rate_by_three() -> None:
    assert upper_bound(0, 1000.0) == pytest.approx(-math.log(0.05) / 1000.0)
    assert upper_bound(3, 1.0) == pytest.approx(7.754, abs=0.001)


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_an_hour_on_the_virtual_clock_takes_no_time() -> None:
    loop = VirtualLoop()
    loop.run_until_complete(asyncio.sleep(3600.0))
    loop.close()
    assert loop.now_s >= 3600.0
