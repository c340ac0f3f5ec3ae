"""Measures how fast, and how right, the server is on jobs of 1,024 to 98,304 ranks. python -m tests.bench.layouts

Megatron's layouts (tensor, pipeline, data and expert parallel: eight groups a rank) are simulated, a fault is put
into one rank, and what all nodes would report goes through the server's own state, choice of ranks and judge. Each
rank that is asked has a real ring. Each fault is made twice: anywhere, and in the group of all ranks.

- quiet: one tick of a healthy job in which every counter of every rank has moved since the last one;
- verdict: from the last digests to the verdict, without the wait for the nodes' answers: the tick, the choice of
  the ranks to ask, the snapshot and the judge. Decoding the answers is told apart;
- naive: what a pass over dicts in plain Python takes for the frontiers alone, as torchfrtrace does it.

Times are CPU time of this machine, caches as cold as its other work leaves them; what is gated is what hardly depends
on that: the right rank and cause every time, and how the time grows when there are eight times as many ranks.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ncclwatch.contract import wire
from ncclwatch.contract.model.rank import RankView
from ncclwatch_server.evidence.inspection import with_members
from ncclwatch_server.judge import judge
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.hearing import Hearing
from ncclwatch_server.simulation.job.faults import RIGHT_CAUSES, Fault, FaultKind, drawn
from ncclwatch_server.simulation.job.layout import Axis, Layout
from ncclwatch_server.simulation.job.program import Training, courses
from ncclwatch_server.simulation.run import cruising, run
from ncclwatch_server.state.digest_rows import GROUP_DTYPE
from ncclwatch_server.watch.examiner import ranks_to_inspect

LAYOUTS = {1024: "tp=8,pp=4,dp=32,ep=8", 16_384: "tp=8,pp=8,dp=256,ep=8", 98_304: "tp=8,pp=16,dp=768,ep=8"}
STEPS_BEFORE = 12  # training steps, of 80 to 110 works each: 1,000 works of every rank
QUIET_TICKS = 30
HANG_S = 20.0
SEED = 7
QUIET_MS_MAX = {16_384: 0.6, 98_304: 4.0}
VERDICT_S_MAX = {16_384: 0.5}
GROWTH_MAX = 10.0  # for eight times the ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """The ticks of a healthy job."""

    ranks: int
    layout: str
    group_rows: int
    median_ms: float
    mean_ms: float
    worst_ms: float
    naive_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One verdict."""

    ranks: int
    fault: str
    group: str  # in whose operation it is made
    works: int  # of the faulty rank
    blocked: int
    asked: int  # ranks whose views the judge saw
    right: bool
    said: str
    verdict_ms: float  # tick, choice, snapshot and judge
    choice_ms: float
    judge_ms: float
    rings_ms: float  # to write the rings of those asked, and to read them
    decode_ms: float
    answers_mb: float


def timed(task: Callable[[], object]) -> float:
    """Return the milliseconds of CPU that a call takes. Nothing measured here waits, or has a second thread."""
    began = time.thread_time()
    task()
    return (time.thread_time() - began) * 1e3


def quiet(layout: Layout) -> Quiet:
    """Return what the ticks of a healthy job cost."""
    fleets = [Fleet(cruising(layout, Training(), steps=8, at_step=step)) for step in (5, 6)]
    hearing = Hearing(fleet=fleets[0])
    for number in (0, 1):
        hearing.report(float(number))
        hearing.tick(float(number))
    found = []
    for number in range(2, QUIET_TICKS + 2):
        hearing.fleet = fleets[number % 2]
        hearing.report(float(number))
        found.append(timed(lambda now=float(number): hearing.tick(now)))  # type: ignore[misc]
        if hearing.job.suspicion:
            raise SystemExit(f"a healthy job of {layout.world_size} ranks is suspicious: {hearing.job.suspicion}")
    _, groups = fleets[0].rows(0.0)
    return Quiet(
        ranks=layout.world_size,
        layout=str(layout),
        group_rows=len(groups),
        median_ms=statistics.median(found),
        mean_ms=statistics.fmean(found),
        worst_ms=max(found),
        naive_ms=min(naive_ms(fleets[0]) for _ in range(3)),
    )


def naive_ms(fleet: Fleet) -> float:
    """Return how long it takes to find who is behind in which group with dicts, as torchfrtrace keeps its entries."""
    _, rows = fleet.rows(0.0)
    names = GROUP_DTYPE.names or ()
    entries = [dict(zip(names, row, strict=True)) for row in rows.tolist()]

    def frontiers() -> list[tuple[int, int]]:
        newest: dict[int, int] = {}
        for entry in entries:
            newest[entry["group"]] = max(newest.get(entry["group"], 0), entry["enqueued"])
        return [(e["rank"], e["group"]) for e in entries if e["enqueued"] < newest[e["group"]]]

    return timed(frontiers)


def heard(layout: Layout, fault: Fault) -> Heard:
    """Return what the server says of a job with a fault, and what that took it."""
    still = run(layout, Training(), (fault,), steps=STEPS_BEFORE + 3, from_step=STEPS_BEFORE)
    fleet = Fleet(still)
    hearing = Hearing(fleet=fleet)
    for seconds in (0.0, HANG_S):
        hearing.report(seconds)
        if seconds < HANG_S:
            hearing.tick(seconds)
    job = hearing.job
    tick_ms = timed(lambda: hearing.tick(HANG_S))
    choice_ms = timed(lambda: ranks_to_inspect(job))
    asked = ranks_to_inspect(job)
    began = time.thread_time()
    views = fleet.views(asked, HANG_S)
    rings_ms = (time.thread_time() - began) * 1e3
    # As many messages as there are nodes: none is bigger than one node's eight ranks.
    by_node: dict[str, list[object]] = {}
    for view in views:
        by_node.setdefault(view.host, []).append(view)
    messages = [wire.encode(wire.Views(index=0, ranks=tuple(each))) for each in by_node.values()]  # type: ignore[arg-type]
    decode_ms = timed(lambda: [_came(message, layout.world_size) for message in messages])
    for message in messages:
        job.inspection.receive_views(_came(message, layout.world_size), (0, 1), HANG_S)
    snapshot_ms = timed(lambda: job.snapshot(HANG_S))
    snapshot = job.snapshot(HANG_S)
    judge_ms = timed(lambda: judge(with_members(snapshot)))
    verdicts = judge(with_members(snapshot))
    culprits = {culprit.rank for verdict in verdicts for culprit in verdict.culprits}
    causes = {verdict.cause for verdict in verdicts}
    return Heard(
        ranks=layout.world_size,
        fault=fault.kind.value,
        group=still.courses[layout.stage(fault.rank)].steps[fault.at].axis.value,
        works=still.places[fault.rank],
        blocked=len(still.blocked),
        asked=len(views),
        right=culprits == {fault.rank} and causes <= RIGHT_CAUSES[fault.kind] and not verdicts[0].one_of,
        said=verdicts[0].summary if verdicts else "nothing",
        verdict_ms=tick_ms + choice_ms + snapshot_ms + judge_ms,
        choice_ms=choice_ms,
        judge_ms=judge_ms,
        rings_ms=rings_ms,
        decode_ms=decode_ms,
        answers_mb=sum(map(len, messages)) / 1e6,
    )


def _came(message: bytes, world_size: int) -> tuple[RankView, ...]:
    """Return views as a server keeps them."""
    unread = wire.open_from_agent(message)
    return unread.read(world_size).ranks if isinstance(unread, wire.UnreadViews) else ()


def growth(few: tuple[int, float], many: tuple[int, float]) -> float:
    """Return by what a time grows for eight times the ranks, between two (ranks, time)."""
    return float((many[1] / few[1]) ** (math.log(8) / math.log(many[0] / few[0])))


def main() -> int:
    """Run the bench. Exit code 1 if a verdict is wrong or the time grows too fast."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, nargs="*", choices=sorted(LAYOUTS), default=sorted(LAYOUTS))
    parser.add_argument("--faults", nargs="*", choices=[kind.value for kind in FaultKind], default=None)
    parser.add_argument("--json", type=Path, help="write the rows to this file as well")
    chosen = parser.parse_args()
    kinds = [FaultKind(name) for name in chosen.faults] if chosen.faults is not None else list(FaultKind)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}"
    )
    ticks: list[Quiet] = []
    verdicts: list[Heard] = []
    for ranks in chosen.ranks:
        layout = Layout.parse(LAYOUTS[ranks])
        ticks.append(quiet(layout))
        show_quiet(ticks[-1])
        stages = courses(layout, Training(), STEPS_BEFORE + 3)
        for kind, axis in itertools.product(kinds, (None, Axis.WORLD)):
            with contextlib.suppress(ValueError):  # no pipeline goes through all ranks
                fault = drawn(kind, layout, stages, STEPS_BEFORE, random.Random(SEED), axis)
                verdicts.append(heard(layout, fault))
                show_heard(verdicts[-1])
    grown = growths(ticks, verdicts)
    if chosen.json:
        rows = {"quiet": [asdict(row) for row in ticks], "verdicts": [asdict(row) for row in verdicts], "growth": grown}
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row.right for row in verdicts) and max(grown.values(), default=0.0) <= GROWTH_MAX else 1


def growths(ticks: list[Quiet], verdicts: list[Heard]) -> dict[str, float]:
    """Return and tell how times grow for eight times the ranks, from each size to the next."""
    found: dict[str, float] = {}
    for few, many in itertools.pairwise(ticks):
        name = f"{few.ranks:,} to {many.ranks:,}"
        found[f"quiet, {name}"] = growth((few.ranks, few.median_ms), (many.ranks, many.median_ms))
        middle = [statistics.median([v.verdict_ms for v in verdicts if v.ranks == n] or [0.0])
                  for n in (few.ranks, many.ranks)]  # fmt: skip
        if all(middle):
            found[f"verdict, {name}"] = growth((few.ranks, middle[0]), (many.ranks, middle[1]))
    for name, times in found.items():
        print(f"  {name}: {times:.1f}x for 8x ranks (asked: at most {GROWTH_MAX:.0f}x)")
    return found


def show_quiet(row: Quiet) -> None:
    """Print one row."""
    limit = f", asked {QUIET_MS_MAX[row.ranks]} ms" if row.ranks in QUIET_MS_MAX else ""
    print(
        f"{row.ranks:,} ranks ({row.layout}), {row.group_rows:,} memberships: quiet tick {row.median_ms:.2f} ms "
        f"(mean {row.mean_ms:.2f}, worst {row.worst_ms:.2f}{limit}); frontiers over dicts {row.naive_ms:.1f} ms, "
        f"{row.naive_ms / row.median_ms:.0f}x",
        flush=True,
    )


def show_heard(row: Heard) -> None:
    """Print one row."""
    limit = f" (asked {VERDICT_S_MAX[row.ranks] * 1e3:.0f})" if row.ranks in VERDICT_S_MAX else ""
    answer = "right" if row.right else f"WRONG: {row.said[:160]}"
    print(
        f"  {row.fault:8} in {row.group:5} {answer}, verdict {row.verdict_ms:.1f} ms{limit}: "
        f"choice {row.choice_ms:.1f}, judge {row.judge_ms:.1f}; {row.asked} of {row.blocked:,} ranks asked, "
        f"{row.works:,} works; answers {row.answers_mb:.1f} MB, decoded in {row.decode_ms:.0f} ms; "
        f"rings {row.rings_ms / max(1, row.asked):.1f} ms each",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
