"""How one target gets its messages: in order, again after failures, in bounds, whatever happens to others."""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace

import pytest

from ncclwatch.contract.model.verdict import Severity
from ncclwatch_server.incidents.book import Incident, IncidentState
from ncclwatch_server.notify import courier as module
from ncclwatch_server.notify.courier import Courier, News, Outcome, Rhythm
from ncclwatch_server.notify.delivery import Refused, Undelivered
from ncclwatch_server.notify.message import Message
from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.silences import Silences
from ncclwatch_server.notify.stages import Stage, Told
from ncclwatch_server.notify.targets import Slack
from tests.unit.server.incidents.test_texts import INCIDENT

QUICK = Rhythm(hold_s=0.02, pause_s=0.01, pause_s_max=0.02, give_up_s=5.0, send_s=5.0)
NOW = 1_800_000_100.0
BARE = replace(INCIDENT, stacks=())
OVER = replace(INCIDENT, state=IncidentState.RESOLVED, closed_at=NOW)
Answer = Callable[[Message], Awaitable[None]]


class Post:
    """A channel that does what a test wants, and remembers what was taken."""

    def __init__(self, answer: Answer | None = None, refresh_s: float = 0.0) -> None:
        self.refresh_s = refresh_s
        self.answer = answer
        self.tried: list[Message] = []
        self.taken: list[Message] = []

    async def send(self, message: Message) -> None:
        """Take a message."""
        self.tried.append(message)
        if self.answer is not None:
            await self.answer(message)
        self.taken.append(message)

    @property
    def stages(self) -> list[Stage]:
        """Return which messages were taken."""
        return [message.stage for message in self.taken]


def silent() -> Silences:
    """Return silences, of which there are none."""
    return Silences((), Records(""), lambda: NOW)


def hired(
    post: Post, records: Records | None = None, silences: Silences | None = None, rhythm: Rhythm = QUICK
) -> Courier:
    """Return a courier."""
    return Courier(
        Slack(name="t", url="http://h"), post, records or Records(""), silences or silent(), lambda: NOW, "", rhythm
    )


def play(scene: Coroutine[None, None, None]) -> None:
    """Run a scene, for 20 seconds at most."""
    asyncio.run(asyncio.wait_for(scene, 20))


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    while not condition():
        await asyncio.sleep(0.002)


async def idle(courier: Courier) -> None:
    """Wait until a courier has nothing more to do for now."""
    await until(lambda: all(case.task is None for case in courier._cases.values()))


def other(number: int, **changes: object) -> Incident:
    """Return another incident."""
    return replace(BARE, id=f"i{number}", **changes)  # type: ignore[arg-type]


def test_first_update_and_resolve_come_in_order_once_each() -> None:
    async def scene() -> None:
        post = Post()
        courier = hired(post)
        for news in (
            News(incident=BARE, step=41), News(incident=BARE), News(incident=INCIDENT),
            News(incident=INCIDENT, settled=True), News(incident=INCIDENT, settled=True),
            News(incident=OVER), News(incident=OVER),
        ):  # fmt: skip
            courier.take(news)
            await until(lambda: post.taken)
            await asyncio.sleep(0.005)
        await idle(courier)
        assert post.stages == [Stage.FIRING, Stage.UPDATED, Stage.RESOLVED]
        assert [message.id for message in post.taken] == [f"abc123-1800000000-{number}" for number in (1, 2, 3)]
        assert {message.step for message in post.taken} == {41}
        assert courier.outcomes[Outcome.DELIVERED] == 3
        assert not courier._cases

    play(scene())


def test_an_update_that_comes_while_the_first_message_is_under_way_is_not_lost() -> None:
    async def scene() -> None:
        gate = asyncio.Event()

        async def slow(_: Message) -> None:
            await gate.wait()

        post = Post(slow)
        courier = hired(post)
        courier.take(News(incident=BARE))
        await until(lambda: post.tried)
        courier.take(News(incident=INCIDENT, settled=True))
        gate.set()
        await until(lambda: len(post.taken) == 2)
        assert post.stages == [Stage.FIRING, Stage.UPDATED]

    play(scene())


@pytest.mark.parametrize("lacks", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_what_this_machine_lacks_for_a_moment_costs_no_message(lacks: Exception) -> None:
    async def scene() -> None:
        post = Post()

        async def once(_: Message) -> None:
            if len(post.tried) == 1:
                raise lacks

        post.answer = once
        courier = hired(post)
        courier.take(News(incident=BARE))
        await until(lambda: post.taken)
        await idle(courier)
        assert (courier.outcomes[Outcome.RETRIED], courier.outcomes[Outcome.GIVEN_UP]) == (1, 0)

    play(scene())


def test_what_fails_is_tried_again_with_the_newest_news_and_the_same_id(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        post = Post()
        courier = hired(post)

        async def twice_down(_: Message) -> None:
            if len(post.tried) == 2:
                courier.take(News(incident=INCIDENT, settled=True))
            if len(post.tried) <= 2:
                raise Undelivered("HTTP 503")

        post.answer = twice_down
        courier.take(News(incident=BARE))
        await until(lambda: post.taken)
        await idle(courier)
        assert post.stages == [Stage.FIRING]
        assert post.taken[0].incident == INCIDENT
        assert len({message.id for message in post.tried}) == 1
        assert courier.outcomes[Outcome.RETRIED] == 2

    with caplog.at_level(logging.INFO):
        play(scene())
    assert [r.message for r in caplog.records if "cannot be reached" in r.message] == [
        "target t cannot be reached (HTTP 503); it is tried again"
    ]
    assert "target t can be reached again" in caplog.text


def test_pauses_grow_up_to_a_bound_and_a_target_may_ask_for_a_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        pauses: list[float] = []

        async def fails(_: Message) -> None:
            raise Undelivered("no", retry_after_s=7.0 if len(pauses) == 4 else 0.0)

        courier = hired(Post(fails), rhythm=Rhythm(pause_s=1.0, pause_s_max=4.0))

        async def pause(pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) == 6:
                await asyncio.Event().wait()

        monkeypatch.setattr(courier, "_pause", pause)
        courier.take(News(incident=BARE))
        await until(lambda: len(pauses) == 6)
        for pause_s, (least, most) in zip(pauses, ((1, 2), (2, 3), (4, 5), (4, 5), (7, 7), (4, 5)), strict=True):
            assert least <= pause_s <= most
        await courier.close(0.0)

    play(scene())


def test_what_is_refused_is_not_tried_again_and_the_next_message_is(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        post = Post()

        async def refuses(_: Message) -> None:
            if len(post.tried) == 1:
                raise Refused("HTTP 404, 'no_service'")

        post.answer = refuses
        courier = hired(post)
        courier.take(News(incident=BARE))
        await idle(courier)
        courier.take(News(incident=OVER))
        await idle(courier)
        assert [message.stage for message in post.tried] == [Stage.FIRING, Stage.RESOLVED]
        assert courier.outcomes[Outcome.REFUSED] == 1

    play(scene())
    assert "target t refuses a message on incident abc123: HTTP 404, 'no_service'" in caplog.text


def test_what_cannot_be_delivered_for_too_long_is_given_up_and_counted() -> None:
    async def scene() -> None:
        async def fails(_: Message) -> None:
            raise Undelivered("no")

        courier = hired(Post(fails), rhythm=replace(QUICK, give_up_s=0.05))
        courier.take(News(incident=BARE))
        await idle(courier)
        assert courier.outcomes[Outcome.GIVEN_UP] == 1
        assert courier.waiting == 0

    play(scene())


def test_a_target_that_does_not_answer_is_left_after_a_while() -> None:
    async def scene() -> None:
        async def hangs(_: Message) -> None:
            if len(post.tried) == 1:
                await asyncio.Event().wait()

        post = Post(hangs)
        courier = hired(post, rhythm=replace(QUICK, send_s=0.05))
        courier.take(News(incident=BARE))
        await idle(courier)
        assert post.stages == [Stage.FIRING]
        assert courier.outcomes[Outcome.RETRIED] == 1

    play(scene())


def test_a_full_spool_drops_the_oldest_that_nobody_has_heard_of_and_counts_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SPOOL_MAX", 3)

    async def scene() -> None:
        up = asyncio.Event()

        async def down(_: Message) -> None:
            if not up.is_set():
                raise Undelivered("no")

        post = Post(down)
        courier = hired(post, rhythm=replace(QUICK, give_up_s=60.0))
        for number in range(5):
            courier.take(News(incident=other(number)))
            await until(lambda number=number: f"i{number}" in courier._waiting)  # type: ignore[misc]
        assert courier.waiting == 3
        up.set()
        await until(lambda: len(post.taken) == 3)
        await idle(courier)
        assert {message.incident.id for message in post.taken} == {"i2", "i3", "i4"}
        assert courier.outcomes[Outcome.DROPPED] == 2

    play(scene())
    assert len([r for r in caplog.records if "the oldest are dropped" in r.message]) == 1


def test_only_some_messages_are_under_way_to_a_target_at_a_time() -> None:
    async def scene() -> None:
        gate = asyncio.Event()

        async def slow(_: Message) -> None:
            await gate.wait()

        post = Post(slow)
        courier = hired(post)
        for number in range(10):
            courier.take(News(incident=other(number)))
        await until(lambda: courier.waiting == 10)
        await asyncio.sleep(0.02)
        assert len(post.tried) == module.SENDS_MAX
        gate.set()
        await until(lambda: len(post.taken) == 10)

    play(scene())


def test_one_incident_that_cannot_be_told_does_not_keep_others_waiting() -> None:
    async def scene() -> None:
        async def poisoned(message: Message) -> None:
            if message.incident.id == "i0":
                raise Undelivered("HTTP 500")

        post = Post(poisoned)
        courier = hired(post)
        for number in range(4):
            courier.take(News(incident=other(number)))
        await until(lambda: len(post.taken) == 3)
        assert {message.incident.id for message in post.taken} == {"i1", "i2", "i3"}
        await courier.close(0.0)

    play(scene())


def test_an_incident_that_no_form_can_be_found_for_is_counted_and_the_next_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        async def broken(message: Message) -> None:
            if message.incident.id == "i0":
                raise ZeroDivisionError

        post = Post(broken)
        courier = hired(post)
        for number in range(2):
            courier.take(News(incident=other(number)))
        await idle(courier)
        assert [message.incident.id for message in post.taken] == ["i1"]
        assert courier.outcomes[Outcome.GIVEN_UP] == 1

    play(scene())
    assert "telling of incident i0 failed" in caplog.text


def test_after_a_restart_nothing_is_told_twice_and_what_was_missed_is() -> None:
    async def scene() -> None:
        records = Records("")
        records.note(
            "t",
            "known",
            Told(stage=Stage.FIRING, count=1, digest=module.tell(BARE, Stage.FIRING, None).digest, urgency=0),
        )
        records.note("t", "more", Told(stage=Stage.FIRING, count=1, digest="older", urgency=0))
        records.note("t", "over", Told(stage=Stage.UPDATED, count=2, digest="", urgency=0))
        records.note("t", "done", Told(stage=Stage.RESOLVED, count=3, digest="", urgency=0))
        post = Post()
        courier = hired(post, records)
        closed = {"state": IncidentState.RESOLVED, "closed_at": NOW}
        for incident in (
            replace(BARE, id="known"), replace(BARE, id="more"), replace(BARE, id="over", **closed),
            replace(BARE, id="done", **closed), replace(BARE, id="old news", **closed), replace(BARE, id="unsure"),
            replace(BARE, id="ended", state=IncidentState.ENDED, closed_at=NOW),
            replace(BARE, id="ended long ago", state=IncidentState.ENDED, closed_at=NOW - 4000.0),
        ):  # fmt: skip
            courier.take(News(incident=incident, settled=True, stored=True))
        await until(lambda: len(post.taken) == 4)
        await asyncio.sleep(0.1)
        assert {(m.incident.id, m.stage, m.id) for m in post.taken} == {
            ("more", Stage.UPDATED, "more-1800000000-2"), ("over", Stage.RESOLVED, "over-1800000000-3"),
            ("ended", Stage.FIRING, "ended-1800000000-1"), ("ended", Stage.RESOLVED, "ended-1800000000-2"),
        }  # fmt: skip
        assert set(courier._cases) == {"known", "more", "unsure"}
        courier.take(News(incident=replace(BARE, id="unsure")))  # it is judged: its job lives
        await until(lambda: len(post.taken) == 5)
        await courier.close(0.0)

    play(scene())


def test_a_job_that_went_on_before_its_target_could_be_reached_is_counted_and_not_told() -> None:
    async def scene() -> None:
        async def fails(_: Message) -> None:
            raise Undelivered("no")

        post = Post(fails)
        courier = hired(post)
        courier.take(News(incident=BARE))
        await until(lambda: post.tried)
        courier.take(News(incident=OVER))
        await idle(courier)
        assert not post.taken
        assert courier.outcomes[Outcome.OVERTAKEN] == 1
        assert not courier._cases

    play(scene())


def test_a_hang_that_comes_back_at_once_is_neither_resolved_nor_told_again() -> None:
    async def scene() -> None:
        post = Post()
        courier = hired(post, rhythm=replace(QUICK, hold_s=30.0))
        courier.take(News(incident=BARE))
        await until(lambda: post.taken)
        courier.take(News(incident=replace(OVER, stacks=())))
        await asyncio.sleep(0.02)
        courier.take(News(incident=BARE))
        await idle(courier)
        assert post.stages == [Stage.FIRING]
        assert courier._cases[BARE.id].closed_at is None  # the next end has to last anew
        courier.take(News(incident=OVER))
        await courier.close(5.0)
        assert post.stages == [Stage.FIRING, Stage.RESOLVED]

    play(scene())


def test_a_hang_that_comes_back_later_is_told_again() -> None:
    async def scene() -> None:
        post = Post()
        courier = hired(post)
        for incident in (BARE, OVER, BARE, OVER):
            courier.take(News(incident=incident))
            await idle(courier)
        assert post.stages == [Stage.FIRING, Stage.RESOLVED] * 2
        assert len({message.id for message in post.taken}) == 4

    play(scene())


def test_a_target_that_forgets_is_reminded_without_being_told_anew() -> None:
    async def scene() -> None:
        records = Records("")
        post = Post(refresh_s=0.01)
        courier = hired(post, records)
        courier.take(News(incident=BARE))
        await until(lambda: len(post.taken) > 3)
        told = records.told("t", BARE.id)
        assert told is not None and told.count == 1
        assert courier.outcomes[Outcome.DELIVERED] == 1
        courier.take(News(incident=OVER))
        await idle(courier)
        assert post.stages[-1] is Stage.RESOLVED
        assert post.stages.count(Stage.RESOLVED) == 1

    play(scene())


def test_at_the_end_what_can_be_told_is_and_what_cannot_is_left_for_the_next_start() -> None:
    async def scene() -> None:
        async def fails(_: Message) -> None:
            raise Undelivered("no")

        records = Records("")
        post = Post(fails)
        courier = hired(post, records, rhythm=Rhythm())
        courier.take(News(incident=BARE))
        await until(lambda: courier.outcomes[Outcome.RETRIED])  # the first attempt has failed, and a pause begins
        await courier.close(5.0)
        assert len(post.tried) == 2
        assert records.told("t", BARE.id) is None
        assert courier.outcomes[Outcome.GIVEN_UP] == 0

    play(scene())


def test_what_a_target_does_not_want_is_not_even_kept() -> None:
    async def scene() -> None:
        courier = hired(Post())
        courier.take(News(incident=replace(BARE, verdict=replace(BARE.verdict, severity=Severity.WARNING))))
        assert not courier._cases

    play(scene())
