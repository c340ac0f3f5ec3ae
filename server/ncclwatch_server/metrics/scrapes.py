"""Answers scrapes: copied in the event loop, rendered in a thread, once for all who ask within a second."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from ncclwatch.contract.words.printable import label_bytes
from ncclwatch_server.metrics import per_rank
from ncclwatch_server.metrics.families import Families
from ncclwatch_server.metrics.moment import Losses, Moment, take
from ncclwatch_server.watch.tick import Watch

FRESH_S = 0.9  # two servers that scrape each second still see each second
_END = b"# EOF\n"


class PerRank(str, Enum):
    """Whose own series a scrape wants."""

    OFF = "off"
    SUSPECTS = "suspects"  # the culprits of open incidents
    ALL = "all"  # every rank of the jobs asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What somebody asks for."""

    accept: str = ""  # the header of the request
    per_rank: PerRank = PerRank.SUSPECTS
    job: str | None = None  # with `all`: only this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer."""

    body: bytes
    content_type: str


class Scrapes:
    """Answers scrapes, one at a time."""

    def __init__(
        self,
        watch: Watch,
        losses: Losses,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._watch = watch
        self._losses = losses
        self._clock = clock
        self._wall = wall
        self._turn = asyncio.Lock()
        self._kept: dict[tuple[str, PerRank], tuple[float, Page]] = {}
        self._process = ProcessCollector(registry=None)

    async def page(self, wanted: Wanted) -> Page:
        """Return the figures of now, or of less than a second ago."""
        _, content_type = choose_encoder(wanted.accept)
        key = content_type, wanted.per_rank
        async with self._turn:
            made_at, page = self._kept.get(key, (float("-inf"), None))
            now = self._clock()
            if page is not None and now - made_at < FRESH_S:
                return page
            moment = take(self._watch, self._losses, now, self._wall())
            page = await asyncio.to_thread(self._render, moment, wanted)
            if wanted.per_rank is not PerRank.ALL:  # megabytes, and asked for once
                self._kept = {kept: each for kept, each in self._kept.items() if now - each[0] < FRESH_S}
                self._kept[key] = now, page
            return page

    def _render(self, moment: Moment, wanted: Wanted) -> Page:
        encode, content_type = choose_encoder(wanted.accept)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Families(moment, suspects=wanted.per_rank is not PerRank.OFF))
        registry.register(self._process)
        body = encode(registry)
        if wanted.per_rank is PerRank.ALL:
            openmetrics = body.endswith(_END)
            jobs = [job for job in moment.jobs if wanted.job in (None, job.id)]
            ranks = per_rank.write(jobs, moment.wall, openmetrics=openmetrics)
            body = body[: -len(_END)] + ranks + _END if openmetrics else body + ranks
        return Page(body=label_bytes(body), content_type=content_type)
