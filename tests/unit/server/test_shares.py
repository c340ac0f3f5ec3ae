"""What jobs of one team fill must not be at the cost of another team: alerts that wait, and what jobs have taught."""

import asyncio
from dataclasses import replace

from ncclwatch.contract.model.job import WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch_server.notify import courier as module
from ncclwatch_server.notify.courier import News
from ncclwatch_server.notify.delivery import Undelivered
from ncclwatch_server.notify.message import Message
from ncclwatch_server.security.guesses import place
from ncclwatch_server.state.waits import history
from tests.unit.server.notify.test_courier import QUICK, Post, hired, other, play, until


def test_alerts_of_one_team_do_not_push_out_an_alert_of_another_while_the_target_is_away() -> None:
    async def scene() -> None:
        up = asyncio.Event()

        async def down(_: Message) -> None:
            if not up.is_set():
                raise Undelivered("no")

        post = Post(down)
        courier = hired(post, rhythm=replace(QUICK, give_up_s=60.0))
        courier.take(News(incident=other(0, job="team-a/run")))
        await until(lambda: courier.waiting == 1)
        for number in range(1, module.SPOOL_MAX + 1):
            courier.take(News(incident=other(number, job=f"team-b/run{number}")))
        await until(lambda: f"i{module.SPOOL_MAX}" in courier._waiting)
        up.set()
        await until(lambda: len(post.taken) >= module.SPOOL_MAX)
        assert "team-a/run" in {message.incident.job for message in post.taken}

    play(scene())


def test_names_of_jobs_of_one_team_do_not_make_the_server_forget_what_jobs_of_another_taught() -> None:
    memory = history.Memory()
    memory.of("team-a/run").learn(WaitClass(phase=Phase.STEP, op="all_reduce", size=2), 40.0, 30.0)
    for number in range(history.JOBS_MAX):
        memory.of(f"team-b/run{number}")
    assert memory.of("team-a/run").lessons()


def test_all_addresses_of_loopback_are_one_place_for_who_guesses() -> None:
    assert len({place(f"127.0.0.{number}") for number in range(1, 100)}) == 1
