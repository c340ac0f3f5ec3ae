"""A ring that anybody of this user may have written: the agent's tick, its messages, and what is left after a crash."""

import contextlib
import itertools
import tempfile
from collections.abc import Hashable
from pathlib import Path

from ncclwatch.contract import digests, wire
from ncclwatch.contract.errors import RingError
from ncclwatch.contract.ring.reader import Ring
from ncclwatch_agent.ranks.jobs import JobKey, LocalJob
from ncclwatch_agent.ranks.rank_rows import LocalRank, sites_to_read
from ncclwatch_server.offline import rings
from ncclwatch_server.offline.errors import Unreadable
from ncclwatch_server.simulation.rings import NOW_NS
from tests.fuzz.engine import Surface
from tests.fuzz.rings_base import BASE, mutate, restore, write

_DIRECTORY = tempfile.TemporaryDirectory(prefix="ncclwatch-fuzz-", dir="/dev/shm")
_PATH = Path(_DIRECTORY.name) / "job" / "0-1.ring"
_PATH.parent.mkdir(mode=0o700)
_PATH.touch(mode=0o600)
_PATH.write_bytes(BASE)
_TICKS = itertools.count(NOW_NS, 10**9)


def check(data: bytes) -> Hashable:
    """Let agent and `analyze` read a ring: what they make of it travels to a server and is read there."""
    write(_PATH, data)
    try:
        return _live(), _left()
    finally:
        restore(_PATH, data)


def _live() -> Hashable:
    try:
        ring = Ring(str(_PATH))
    except RingError as error:
        return str(error)[-20:]
    with contextlib.closing(LocalRank(ring)) as rank:
        now_ns = next(_TICKS)
        rank.observe(now_ns)
        job = LocalJob(JobKey.of(rank), 1, rank)
        job.add(rank)
        wire.decode_from_agent(wire.encode(job.announce()))
        _, ranks, groups = digests.split_digest(job.digest(now_ns))
        for message in (job.loops(now_ns), job.facts(now_ns, ())):
            if message is not None:
                wire.decode_from_agent(wire.encode(message))
        job.candidates(), job.newly_ended()
        view = rank.view(now_ns)
        sites_to_read(view)
        heard = wire.decode_from_agent(wire.encode(wire.Views(index=1, ranks=(view,))))
        assert isinstance(heard, wire.Views)
        return len(ranks), len(groups), len(view.threads), len(view.history), len(view.saves), view.ending is None


def _left() -> Hashable:
    try:
        left = rings.read(str(_PATH))
    except Unreadable as error:
        return str(error)[:30]
    return len(left.view.groups), len(left.view.peers), left.view.phase == "", left.view.ending is None


SURFACE = Surface(
    name="rings",
    seeds=(b"[]",),
    mutate=mutate,
    check=check,
    cpu_s_max=1.5,
)
