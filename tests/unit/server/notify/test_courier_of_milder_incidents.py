"""What a target hears of an incident that has become milder than it asks for."""

import asyncio
from dataclasses import replace

import pytest

from ncclwatch.contract.model.verdict import Severity
from ncclwatch_server.incidents.book import IncidentState
from ncclwatch_server.notify.courier import News
from ncclwatch_server.notify.delivery import Undelivered
from ncclwatch_server.notify.message import Message
from ncclwatch_server.notify.stages import Stage
from tests.unit.server.notify.test_courier import BARE, NOW, Post, hired, idle, play, until


@pytest.mark.parametrize("under_way", [False, True], ids=["told", "being told"])
@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.INFO])
def test_who_was_told_of_an_incident_hears_its_end_though_it_has_become_milder(
    severity: Severity, *, under_way: bool
) -> None:
    async def scene() -> None:
        gate = asyncio.Event()

        async def answers(_: Message) -> None:
            await gate.wait()

        post = Post(answers)
        courier = hired(post)
        courier.take(News(incident=BARE))
        await until(lambda: post.tried)
        if not under_way:
            gate.set()
            await idle(courier)
        milder = replace(BARE, verdict=replace(BARE.verdict, severity=severity))
        courier.take(News(incident=milder))
        courier.take(News(incident=replace(milder, state=IncidentState.RESOLVED, closed_at=NOW)))
        gate.set()
        await until(lambda: len(post.taken) == 2)
        assert post.stages == [Stage.FIRING, Stage.RESOLVED]
        courier.take(News(incident=replace(milder, id="another")))
        await idle(courier)
        assert len(post.taken) == 2

    play(scene())


def test_what_has_become_mild_before_it_could_be_told_is_not_told() -> None:
    async def scene() -> None:
        away = True

        async def answers(_: Message) -> None:
            if away:
                raise Undelivered("not there")

        post = Post(answers)
        courier = hired(post)
        courier.take(News(incident=BARE))
        await until(lambda: post.tried)
        courier.take(News(incident=replace(BARE, verdict=replace(BARE.verdict, severity=Severity.INFO))))
        away = False
        await idle(courier)
        assert post.taken == []

    play(scene())
