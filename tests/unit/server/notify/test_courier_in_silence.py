"""What a courier tells, and what it keeps back, while its target is silenced."""

import asyncio
from dataclasses import replace

from ncclwatch_server.incidents.book import IncidentState
from ncclwatch_server.notify.courier import News, Outcome
from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.silences import Silences
from ncclwatch_server.notify.stages import Stage
from tests.unit.server.notify.test_courier import BARE, NOW, OVER, Post, hired, idle, other, play, silent, until


def test_a_silence_holds_back_and_what_still_stands_when_it_ends_is_told() -> None:
    async def scene() -> None:
        silences = silent()
        post = Post()
        courier = hired(post, silences=silences)
        mute = silences.add("job", NOW, NOW + 60)
        courier.take(News(incident=BARE))
        courier.take(News(incident=other(1)))
        await asyncio.sleep(0.05)
        assert not post.tried
        assert courier.outcomes[Outcome.SILENCED] == 2
        courier.take(News(incident=replace(other(1), state=IncidentState.RESOLVED, closed_at=NOW)))
        silences.end(mute.id)
        courier.look_again()
        await until(lambda: post.taken)
        await idle(courier)
        assert [(message.incident.id, message.stage) for message in post.taken] == [("abc123", Stage.FIRING)]
        assert courier.outcomes[Outcome.OVERTAKEN] == 0

    play(scene())


def test_a_job_that_dies_in_a_silence_is_counted_and_never_told() -> None:
    async def scene() -> None:
        silences = silent()
        post = Post()
        courier = hired(post, silences=silences)
        silences.add("job", NOW, NOW + 60)
        courier.take(News(incident=BARE))
        courier.take(News(incident=replace(OVER, state=IncidentState.ENDED)))
        await idle(courier)
        assert not post.tried
        assert courier.outcomes[Outcome.SILENCED] == 1
        assert not courier._cases

    play(scene())


def test_what_ended_in_a_silence_is_not_told_by_the_next_server_either() -> None:
    async def scene() -> None:
        silences, records = silent(), Records("")
        before = hired(Post(), records, silences)
        silences.add("job", NOW, NOW + 60)
        ended = replace(OVER, state=IncidentState.ENDED, closed_at=NOW)
        before.take(News(incident=BARE))
        before.take(News(incident=ended))
        await idle(before)
        post = Post()
        after = hired(post, records)
        after.take(News(incident=ended, settled=True, stored=True))
        await idle(after)
        assert not post.tried

    play(scene())


def test_a_silence_that_runs_out_by_itself_is_noticed() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        silences = Silences((), Records(""), loop.time)
        post = Post()
        courier = hired(post, silences=silences)
        silences.add("job", loop.time(), loop.time() + 0.1)
        courier.take(News(incident=BARE))
        await until(lambda: post.taken)
        assert silences.muted_for(BARE) == 0.0

    play(scene())


def test_a_resolve_is_told_in_a_silence_too() -> None:
    async def scene() -> None:
        silences = silent()
        post = Post()
        courier = hired(post, silences=silences)
        courier.take(News(incident=BARE))
        await until(lambda: post.taken)
        silences.add("job", NOW, NOW + 60)
        courier.take(News(incident=OVER))
        await idle(courier)
        assert post.stages == [Stage.FIRING, Stage.RESOLVED]

    play(scene())
