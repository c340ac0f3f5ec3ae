"""Brings incidents from the watch to the targets, through a thread with an event loop of its own.

The watch hands them over and goes on at once. Name look-ups, TLS, slow and dead targets all stay on this side, so
nothing here can delay the judging, and each target has a courier of its own, so that none delays another. Where the
thread ends it is begun anew with new couriers, which are handed what the old ones had not told yet.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from ncclwatch.contract.machine.liveness import LoopLife, keep_thread
from ncclwatch_server import limits
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.notify.courier import Courier, News, Outcome, Rhythm
from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.silences import Silences
from ncclwatch_server.notify.targets import AnyTarget, Targets

log = logging.getLogger("ncclwatch.server")

GRACE_S = 1.0  # at the end, for what can be told at once
INBOX_MAX = 4096  # news that wait for the thread; the oldest go
TICK_S = 1.0
THREADS_MAX = 160  # for name look-ups and Apprise: they block


class Notifier:
    """Tells all targets. A context manager: it tells while it is open."""

    def __init__(
        self,
        targets: Targets,
        records: Records,
        silences: Silences,
        *,
        wall: Callable[[], float] = time.time,
        rhythm: Rhythm | None = None,
    ) -> None:
        """Check that all targets can be used here. Raises `ConfigError`."""
        self.life = LoopLife("notifier", age_s_max=limits.PART_STILL_S, ends_s=limits.PART_ENDS_S)
        self.leads: Callable[[], bool] = lambda: True  # this server may notify now
        self._base = targets.link
        self._records = records
        self._silences = silences
        self._wall = wall
        self._rhythm = rhythm or Rhythm()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._targets = tuple(targets.target)
        self._couriers = self._hire(self._targets) if self._targets else []
        self._inbox: deque[News] = deque()
        self._untold: list[tuple[News, ...]] = []  # by those that were couriers before, each one's own
        self._lives = 0
        self._past: Counter[tuple[str, Outcome]] = Counter()  # of those
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._closing: asyncio.Event | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ncclwatch-notify", daemon=True)

    def __enter__(self) -> "Notifier":
        if self._couriers:
            self._thread.start()
            self._started.wait(10.0)
            self._silences.on_change = self.look_again
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._couriers:
            self._silences.on_change = None
            self._stopping.set()
            self._call(self._close)
            self._thread.join(timeout=GRACE_S + 1.0)

    @property
    def outcomes(self) -> Mapping[tuple[str, Outcome], int]:
        """Return what became of messages, by target."""
        return {
            (each.name, outcome): count + self._past[each.name, outcome]
            for each in self._couriers
            for outcome, count in each.outcomes.items()
        }

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the same in words, for /metrics."""
        return {(name, outcome.value): count for (name, outcome), count in self.outcomes.items()}

    def hear(self, incident: Incident, *, step: int = 0, settled: bool = False) -> None:
        """Take the newest form of an incident. Never waits."""
        self._hand_over(News(incident=incident, step=step, settled=settled))

    def recall(self, incidents: Iterable[Incident]) -> None:
        """Take what a store has kept: what was owed when the server ended is told now."""
        for incident in incidents:
            self._hand_over(News(incident=incident, settled=True, stored=True))

    def look_again(self) -> None:
        """Decide anew what to tell: the silences have changed."""
        self._call(self._look_again)

    def _look_again(self) -> None:
        for courier in self._couriers:
            courier.look_again()

    def _hire(self, targets: Iterable[AnyTarget]) -> list[Courier]:
        """Return a courier for each target."""
        # What speaks to targets takes a tenth of a server's start, and most servers on one machine have none.
        from ncclwatch_server.notify.channels import open_channel
        from ncclwatch_server.notify.posting import open_client

        client = open_client()
        self._closers.append(client.aclose)
        couriers = [
            Courier(
                target,
                open_channel(target, client),
                self._records,
                self._silences,
                self._wall,
                self._base,
                self._rhythm,
            )
            for target in targets
        ]
        for courier in couriers:
            courier.leads = lambda: self.leads()
        return couriers

    def _hand_over(self, news: News) -> None:
        if not self._couriers:
            return
        if len(self._inbox) >= INBOX_MAX:
            self._inbox.popleft()
            for courier in self._couriers:
                self._past[courier.name, Outcome.DROPPED] += 1
        self._inbox.append(news)
        self._call(self._take_all)

    def _take_all(self) -> None:
        while self._inbox:
            news = self._inbox.popleft()
            for courier in self._couriers:
                self._give(courier, news)

    def _give(self, courier: Courier, news: News) -> None:
        try:
            courier.take(news)
        except Exception:  # one incident that cannot be told must not keep the others untold
            log.exception("target %s: incident %s could not be taken", courier.name, news.incident.id)

    def _call(self, action: Callable[[], object]) -> None:
        """Let the loop do something, if it still runs."""
        if self._loop is None or not self._couriers:
            return
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:  # it has ended; where it is begun anew, it finds what waits
            log.debug("news came after the end of the notifier")

    def _close(self) -> None:
        if self._closing is not None:
            self._closing.set()

    def _run(self) -> None:
        keep_thread(self.life, log, self._live, self._stopping)

    def _live(self) -> None:
        if self._lives:
            self._past.update(
                {(each.name, outcome): count for each in self._couriers for outcome, count in each.outcomes.items()}
            )
            self._couriers = self._hire(self._targets)
        self._lives += 1
        try:
            asyncio.run(self._serve())
        finally:
            self._loop = None

    async def _serve(self) -> None:
        try:
            await self._tell_all()
        finally:  # before the tasks are cancelled, which forget what is over
            self._untold = [courier.untold() for courier in self._couriers]

    async def _tell_all(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(THREADS_MAX, "ncclwatch-notify"))
        self._closing = asyncio.Event()
        self._started.set()
        for courier, untold in zip(self._couriers, self._untold, strict=False):
            for news in untold:
                self._give(courier, news)
        self._take_all()
        while not self._closing.is_set():
            self.life.went_round()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._closing.wait(), TICK_S)
        await asyncio.gather(*(courier.close(GRACE_S) for courier in self._couriers))
        for close in self._closers:
            await close()
