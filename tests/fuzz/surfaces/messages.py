"""What one agent says of a job, from its hello on, while another agent speaks for the rest; and what is judged of it.

An input is a JSON list: messages as they travel, and digests as {"digest": [index, rank rows, group rows]}.
"""

import asyncio
import json
import struct
import time
from collections.abc import Hashable, Mapping

from starlette.datastructures import Headers

from ncclwatch.contract import config, digests, wire
from ncclwatch.contract.model.rank import RankView
from ncclwatch_server.evidence.inspection import with_members
from ncclwatch_server.incidents.book import IncidentBook
from ncclwatch_server.ingest.session import Door
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.judge import judge
from ncclwatch_server.security.scopes import Access
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.tick import Watch
from tests.fuzz import mutation
from tests.fuzz.engine import Broken, Surface
from tests.fuzz.surfaces.digests import digest
from tests.fuzz.surfaces.judge import WORLD, is_sound, scenarios_of_four
from tests.unit.server.ingest.test_session import Line

SCENARIOS = 8
_DIGEST = "digest"


class _Clock:
    """The clock, turned on now and then."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


def check(data: bytes) -> Hashable:
    """Let an agent say it all, and look at each job that came of it as the watch does."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        said = [data.decode("utf-8", "replace")]
    return asyncio.run(_played(said if isinstance(said, list) else [said]))


async def _played(said: list[object]) -> Hashable:
    clock = _Clock()
    watch = Watch(judge, IncidentBook(()), NoStore(), clock, lambda: 1.8e9 + clock.ahead_s)
    door, agent, other = Door(watch, Access(())), Line(), Line()
    try:
        sessions = [door.meet(line, Headers({})) for line in (other, agent)]  # type: ignore[arg-type]
        for session in sessions:
            session.begin()
        for each in (_hello("other"), _announce((2, 3)), digest((2, 3), wait_s=50.0)):
            sessions[0].take(each, text=each[:1] == b"{")
        for each in said:
            if agent.talks:
                part, text = _encoded(each)
                sessions[1].take(part, text=text)
        await door.desk.begin(int)
        await asyncio.sleep(0)
        clock.ahead_s += 4.0
        if not other.talks:
            raise Broken(f"the other agent was let go: {other.last_words!r}")
        failed = [found for job in watch.jobs.all() if (found := await _looked_at(watch, job))]
        return agent.last_words[:60], tuple(failed), len(watch.jobs.all())
    finally:
        for line, session in zip((other, agent), sessions, strict=True):
            line.talks = False
            session.ended()
        for timer in (watch._timer, door._looking):
            if timer is not None:
                timer.cancel()
        door.close()


async def _looked_at(watch: Watch, job: Job) -> Hashable:
    await watch._look_at(job)
    if watch.counters.look_failures or watch.counters.judge_failures:
        raise Broken("the judge, or the look at a job, failed")
    snapshot = with_members(job.snapshot(watch._clock()))
    verdicts = judge(snapshot)
    for verdict in verdicts:
        is_sound(verdict, job.world_size)
    return tuple((verdict.cause.value, verdict.certainty.value) for verdict in verdicts)


def _encoded(each: object) -> tuple[bytes, bool]:
    """Return a message or a digest as it travels."""
    if not isinstance(each, dict) or _DIGEST not in each:
        return json.dumps(each).encode(), True
    try:
        index, ranks, groups = each[_DIGEST]
        return digests.pack_digest(index, [tuple(row) for row in ranks], [tuple(row) for row in groups]), False
    except (TypeError, ValueError, struct.error, OverflowError):
        return digest((0, 1)), False


def _hello(agent: str) -> bytes:
    return wire.encode(wire.Hello(protocol=config.PROTOCOL, agent=agent, host=agent, version="1", wall_s=1.8e9))


def _announce(ranks: tuple[int, ...]) -> bytes:
    return wire.encode(
        wire.Announce(index=0, job="j", instance="h:1/r", attempt=0, world_size=WORLD, ranks=ranks, terminal=True)
    )


def _seed(views: Mapping[int, RankView]) -> bytes:
    """Return what an agent says of the first two of four ranks, and of the others, for whom it does not speak."""
    rank_rows, group_rows = _rows((0, 1))
    message = wire.encode(wire.Views(index=0, ranks=tuple(views.values())))
    said = [_hello("a"), _announce((0, 1)), message]
    said = [json.loads(each) for each in said]
    return json.dumps([*said[:2], {_DIGEST: [0, rank_rows, group_rows]}, said[2]]).encode()


def _rows(ranks: tuple[int, ...]) -> tuple[list[list[float]], list[list[float]]]:
    _, rank_bytes, group_bytes = digests.split_digest(digest(ranks, wait_s=50.0))
    return [list(row) for row in digests.RANK_ROW.iter_unpack(rank_bytes)], [
        list(row) for row in digests.GROUP_ROW.iter_unpack(group_bytes)
    ]


def _other_news() -> bytes:
    """Return everything that is no view, once."""
    said: list[wire.AgentMessage] = [
        wire.Stacks(index=0, dumps=()),
        wire.Loops(index=0, ranks=(wire.Loop(0, "/u/t.py:3", 1, 4, 10, False, False, (("3x4", 2),), "main"),)),
        wire.Facts(index=0, alike=(), joined=(0, 1)),
        wire.Testimonies(index=0, ranks=()),
        wire.Parameters(index=0, key=("ddp", "0-3"), ranks=((0, ("w 3x4",)),)),
        wire.Gone(index=0),
    ]
    parts = [_hello("a"), _announce((0, 1)), *map(wire.encode, said)]
    return json.dumps([json.loads(part) for part in parts]).encode()


SURFACE = Surface(
    name="messages",
    seeds=(_other_news(), *map(_seed, scenarios_of_four(SCENARIOS))),
    mutate=mutation.of_json,
    check=check,
    cpu_s_max=5.0,
)
