"""Measures the parts of the server on 16,384 ranks, each against what one would write, or use, first.

- tick: the frontiers of a healthy job, against a pass over dicts, as torchfrtrace keeps its entries;
- verdict: a rank that skipped a collective, from the last digests to the verdict, without the nodes' answers;
- stacks: merged to who stands where, with rank ranges and threads, against counting folded stacks (flamegraph's way);
- /metrics: the page of the job, against one prometheus-client gauge a rank for each of four values;
- storage: incidents until the database has them, against sqlite3 with one row of JSON and one commit each.
"""

import asyncio
import json
import random
import sqlite3
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from ncclwatch.contract.model.rank import StackDump, StackFrame
from ncclwatch_server.evidence import stack_collection
from ncclwatch_server.metrics import PerRank, Scrapes, Wanted
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.job.faults import FaultKind, drawn
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Training, courses
from ncclwatch_server.simulation.run import cruising
from ncclwatch_server.store.incident_store import Store
from ncclwatch_server.store.no_store import NoStore
from tests.bench import layouts
from tests.bench.row import Row, at_most
from tests.unit.server.incidents.test_texts import INCIDENT
from tests.unit.server.metrics.test_families import big, watching
from tests.unit.server.server_values import verdict

RANKS = 16_384
INCIDENTS = 500
METRICS_MB_MAX = 1.0
REPEAT = 5


def rows() -> list[Row]:
    """Measure all parts."""
    return [*_ticks(), _verdict(), _stacks(), *_metrics(), _storage()]


def _ticks() -> list[Row]:
    found = []
    for ranks, bound in layouts.QUIET_MS_MAX.items():
        quiet = layouts.quiet(Layout.parse(layouts.LAYOUTS[ranks]))
        budget, met = at_most(bound, quiet.median_ms, "ms")
        found.append(
            Row(what=f"quiet tick, {ranks:,} ranks x 8 groups", unit="ms of CPU", ours=quiet.median_ms,
                peer="frontiers over dicts", theirs=quiet.naive_ms, budget=budget, met=met)
        )  # fmt: skip
    return found


def _verdict() -> Row:
    layout, training = Layout.parse(layouts.LAYOUTS[RANKS]), Training()
    stages = courses(layout, training, layouts.STEPS_BEFORE + 3)
    fault = drawn(FaultKind.SKIP, layout, stages, layouts.STEPS_BEFORE, random.Random(layouts.SEED))
    heard = layouts.heard(layout, fault)
    if not heard.right:
        raise SystemExit(f"the verdict of {RANKS:,} ranks is wrong: {heard.said}")
    budget, met = at_most(layouts.VERDICT_S_MAX[RANKS], heard.verdict_ms / 1e3, "s")
    what = f"verdict, {RANKS:,} ranks x {heard.works:,} works"
    return Row(what=what, unit="s of CPU", ours=heard.verdict_ms / 1e3, budget=budget, met=met)


def _stacks() -> Row:
    """Stacks of a job that waits in a backward pass, but for a rank that saves."""
    dumps = {rank: _dump(rank, odd=rank == RANKS // 3) for rank in range(RANKS)}
    said = verdict(culprits=(RANKS // 3,), victims=tuple(rank for rank in dumps if rank != RANKS // 3))

    def folded() -> Counter[str]:
        return Counter(
            f"{name};" + ";".join(f"{f.function} ({f.file}:{f.line})" for f in reversed(frames))
            for dump in dumps.values()
            for name, frames in dump.threads
        )

    merged = stack_collection.merge(dumps, said)
    if merged[0].ranks != (RANKS // 3,):
        raise SystemExit("the odd rank does not come first among the merged stacks")
    ours = min(layouts.timed(lambda: stack_collection.merge(dumps, said)) for _ in range(REPEAT))
    theirs = min(layouts.timed(folded) for _ in range(REPEAT))
    what = f"merging the stacks of {RANKS:,} ranks"
    return Row(what=what, unit="ms of CPU", ours=ours, peer="counting folded stacks", theirs=theirs)


def _dump(rank: int, *, odd: bool) -> StackDump:
    """Return what py-spy says of a rank: 24 frames of the main thread, and a thread that loads data."""
    library = tuple(
        StackFrame(function=f"call_{n}", file="/v/site-packages/torch/nn/modules/module.py", line=1000 + n)
        for n in range(22)
    )
    last = StackFrame(function="save", file="/home/me/save.py", line=7)
    usual = StackFrame(function="backward", file="/home/me/train.py", line=44)
    main = (last if odd else usual, *library, StackFrame(function="<module>", file="/home/me/train.py", line=90))
    loader = tuple(StackFrame(function="get", file="/usr/lib/python3.11/queue.py", line=171 + n) for n in range(6))
    return StackDump(rank=rank, threads=(("MainThread", main), ("pin_memory", loader)))


def _metrics() -> list[Row]:
    layout = Layout.parse(layouts.LAYOUTS[RANKS])
    watch = watching()
    big(watch, Fleet(cruising(layout, Training(), steps=8, at_step=5)))

    async def page() -> bytes:
        scrapes = Scrapes(watch, NoStore(), clock=time.monotonic, wall=time.time)
        return (await scrapes.page(Wanted(per_rank=PerRank.OFF))).body

    def cpu_ms(task: object) -> float:
        began = time.process_time()
        task()  # type: ignore[operator]
        return (time.process_time() - began) * 1e3

    ours = asyncio.run(page())
    ours_ms = min(cpu_ms(lambda: asyncio.run(page())) for _ in range(REPEAT))
    registry = CollectorRegistry()
    gauges = [Gauge(f"rank_value_{n}", "One of four.", ("job", "rank"), registry=registry) for n in range(4)]
    for gauge in gauges:
        for rank in range(RANKS):
            gauge.labels("llm", str(rank)).set(rank)
    theirs = generate_latest(registry)
    theirs_ms = min(cpu_ms(lambda: generate_latest(registry)) for _ in range(2))
    budget, met = at_most(METRICS_MB_MAX, len(ours) / 1e6, "MB")
    peer = "a gauge a rank"
    return [
        Row(what=f"/metrics, {RANKS:,} ranks", unit="MB", ours=len(ours) / 1e6, peer=peer, theirs=len(theirs) / 1e6,
            budget=budget, met=met),
        Row(what=f"/metrics, {RANKS:,} ranks", unit="ms of CPU", ours=ours_ms, peer=peer, theirs=theirs_ms),
    ]  # fmt: skip


def _storage() -> Row:
    incidents = [replace(INCIDENT, id=f"{number:012x}") for number in range(INCIDENTS)]
    with tempfile.TemporaryDirectory() as name:
        with Store(f"sqlite:///{Path(name) / 'ours.db'}") as store:
            opened = time.process_time()
            for incident in incidents:
                store.put(incident)
            while store.health().waiting:
                time.sleep(0.01)
            ours = (time.process_time() - opened) / INCIDENTS * 1e3
            kept = len(store.load())
        if kept != INCIDENTS:
            raise SystemExit(f"the store has {kept} of {INCIDENTS} incidents")
        plain = sqlite3.connect(Path(name) / "theirs.db")
        plain.execute("CREATE TABLE incidents (id TEXT PRIMARY KEY, body TEXT)")
        began = time.process_time()
        for incident in incidents:
            with plain:
                plain.execute("INSERT INTO incidents VALUES (?, ?)", (incident.id, json.dumps(repr(incident))))
        theirs = (time.process_time() - began) / INCIDENTS * 1e3
        plain.close()
    return Row(what="storing an incident", unit="ms of CPU", ours=ours, peer="sqlite3, a commit each", theirs=theirs)
