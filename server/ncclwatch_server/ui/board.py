"""Keeps what the ranks of each job have done in the last minutes, and who looks on.

Every second each job's column is painted in a thread. Whoever has a job's page open hears of it: what pages show
is made once for all of them. Of thousands of jobs those that somebody looks at or that have an incident are painted
every second, and the others in turn.
"""

import asyncio
import base64
import logging
import time
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from ncclwatch.contract.machine.liveness import LoopLife
from ncclwatch.contract.wire import CommandKind
from ncclwatch_server import limits
from ncclwatch_server.incidents.book import Incident, JobKey
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.rank_states import states_of
from ncclwatch_server.jobs.read_model import JobSight, sights_of
from ncclwatch_server.runtime.worker_threads import Desk
from ncclwatch_server.tracing.timeline import History, history_of
from ncclwatch_server.ui.matrix import Matrix
from ncclwatch_server.ui.panel import Panel, panel_of, summary_of
from ncclwatch_server.ui.step_rate import StepRate
from ncclwatch_server.watch.tick import Watch

log = logging.getLogger("ncclwatch.server")

FRAMES_WAITING_MAX = 4  # of one viewer that does not read; then it gets the newest only
PAINTED_MAX = 256  # jobs in a second that nobody looks at: one takes a third of a millisecond
ASK_EVERY_S = 2.0
ASK_MAX = 4  # nodes asked at a time
ASK_OF_NODE_MAX = 8  # ranks of one node; of a big job one: a view of it takes milliseconds to decode

Sections = dict[str, str]  # HTML, by the name of the part of a page
Render = Callable[[str, Panel, tuple[Incident, ...]], Sections]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is new on a job's page."""

    column: bytes  # JSON: its number, time and states
    parts: Sections  # HTML of the parts of the page
    unnamed: tuple[int, ...]  # ranks whose full views would tell more


@dataclass(slots=True, kw_only=True, eq=False)
class Strip:
    """What the board keeps of one attempt of one job."""

    matrix: Matrix
    step_rate: StepRate = field(default_factory=StepRate)
    viewers: "set[asyncio.Queue[Frame]]" = field(default_factory=set)
    ask_at: float = 0.0
    painted_at: float = float("-inf")
    over: bool = False  # the job has ended, and that is painted


def to_paint(strips: Mapping[JobKey, Strip], opened: Collection[JobKey]) -> list[JobKey]:
    """Return the jobs to paint now: those that somebody looks at or that have an open incident, and the next others."""
    if len(strips) <= PAINTED_MAX:
        return list(strips)
    wanted = [key for key, strip in strips.items() if strip.viewers or key in opened]
    others = sorted(strips.keys() - set(wanted), key=lambda key: strips[key].painted_at)
    return wanted + others[:PAINTED_MAX]


class Board:
    """Paints all jobs, once a second where there are few hundreds.

    `render` makes the parts of a job's page of (its id, its panel, its incidents). It is called in a thread.
    """

    def __init__(self, watch: Watch, desk: Desk, render: Render) -> None:
        self.lag_s = 0.0  # by how much the event loop was late when it was due last, the worst of a minute
        self.life = LoopLife("pages", age_s_max=limits.PART_STILL_S, ends_s=limits.PART_ENDS_S)
        self._watch = watch
        self._desk = desk
        self._render = render
        self._strips: dict[JobKey, Strip] = {}
        self._failing = False
        self._lags: list[float] = []

    @property
    def viewers(self) -> int:
        """How many job pages are open."""
        return sum(len(strip.viewers) for strip in self._strips.values())

    async def run(self) -> None:
        """Paint until cancelled."""
        due = time.monotonic() + limits.TICK_S
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.life.went_round()
            now = time.monotonic()
            self._note_lag(now - due)
            due = max(due + limits.TICK_S, now)
            try:
                await self._paint(now)
                self._failing = False
            except Exception:
                if not self._failing:  # told once, not every second
                    log.exception("the pages could not be brought up to date; it is tried again every second")
                self._failing = True

    def strip(self, key: JobKey) -> Strip | None:
        """Return what is kept of a job."""
        return self._strips.get(key)

    def history(self, key: JobKey) -> Callable[[], History]:
        """Return what unpacks the states of a job's ranks in the last minutes."""
        strip = self._strips.get(key)
        columns = strip.matrix.columns()[1] if strip is not None else ()
        return lambda: history_of((column.at, zlib.decompress(column.packed)) for column in columns)

    async def follow(self, key: JobKey, world_size: int) -> AsyncIterator[Frame | None]:
        """Yield a job's frames as they come, for as long as the job is known; None when there was none for a while."""
        # A job that has come just now is not painted yet.
        strip = self._strips.setdefault(key, Strip(matrix=Matrix(world_size)))
        box: asyncio.Queue[Frame] = asyncio.Queue(FRAMES_WAITING_MAX)
        strip.viewers.add(box)
        try:
            while self._strips.get(key) is strip:
                try:
                    frame: Frame | None = await asyncio.wait_for(box.get(), limits.SILENT_S)
                except asyncio.TimeoutError:
                    frame = None
                yield frame
        finally:
            strip.viewers.discard(box)

    async def _paint(self, now: float) -> None:
        listed = self._watch.jobs.listed()
        self._strips = {job.key: self._strips.get(job.key) or Strip(matrix=Matrix(job.world_size)) for job in listed}
        opened = self._watch.book.open_by_job()
        going = {job.key: job for job in listed if not self._is_done(job)}
        jobs = [going[key] for key in to_paint({key: self._strips[key] for key in going}, opened)]
        every = self._watch.book.all()
        strips = [(sight, self._strips[sight.key]) for sight in sights_of(jobs, opened, now)]
        wall = time.time()
        frames = await self._desk.make(lambda: [self._frame(sight, strip, every, wall) for sight, strip in strips])
        for job, (_, strip), frame in zip(jobs, strips, frames, strict=True):
            strip.over, strip.painted_at = job.ended, now
            if frame is None:
                continue
            for box in strip.viewers:
                if box.full():
                    box.get_nowait()
                box.put_nowait(frame)
            self._ask(job, strip, frame.unnamed, now)

    def _frame(self, sight: JobSight, strip: Strip, every: tuple[Incident, ...], wall: float) -> Frame | None:
        """Add a column to a job's strip, and make its frame if somebody looks. In a thread, one at a time."""
        states = states_of(sight.picture, silent=sight.silent, blamed=sight.blamed)
        number = strip.matrix.add(states, wall)
        strip.step_rate.note(sight.steps, sight.picture.now)
        if not strip.viewers:
            return None
        panel = panel_of(sight, states, strip.step_rate)
        packed = base64.b64encode(states.tobytes()).decode()
        column = {"number": number, "at": wall, "states": packed, "summary": summary_of(panel.states)}
        return Frame(
            column=msgspec.json.encode(column),
            parts=self._render(sight.id, panel, tuple(i for i in every if i.job == sight.id)),
            unnamed=panel.unnamed,
        )

    def _is_done(self, job: Job) -> bool:
        """Whether nothing about a job changes any more."""
        strip = self._strips.get(job.key)
        return strip is not None and strip.over

    def _ask(self, job: Job, strip: Strip, unnamed: tuple[int, ...], now: float) -> None:
        """Ask a few nodes for one full view each, so that the open page can tell groups, phases and lines by name."""
        if now < strip.ask_at or job.ended:
            return
        strip.ask_at = now + ASK_EVERY_S
        by_node: dict[int, list[int]] = {}
        for rank in unnamed:
            node = job.state.owner(rank)
            if not job.state.ended[rank] and (node in by_node or len(by_node) < ASK_MAX):
                by_node.setdefault(node, []).append(rank)
        of_node = ASK_OF_NODE_MAX if job.world_size <= limits.INSPECT_ALL_MAX else 1
        for node, ranks in by_node.items():
            served = job.served.get(node)
            if served is not None and served.alive:
                command = served.link.command(CommandKind.INSPECT, served.index, tuple(ranks[:of_node]))
                job.showing.expect((node, command))

    def _note_lag(self, late_s: float) -> None:
        self._lags = [*self._lags[-59:], late_s]
        self.lag_s = max(self._lags)
