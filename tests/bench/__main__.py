"""Measures what ncclwatch costs: every row in this run, against a named alternative. `make bench`."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from ncclwatch.native import build
from tests.bench import (
    agent,
    alerts,
    attaching,
    day,
    fleet,
    hostile,
    instructions,
    jobs,
    pages,
    postmortem,
    recorder,
    recovery,
    server,
    starting,
    steps,
    stragglers,
    takeover,
)
from tests.bench.ingest import measure as ingest
from tests.bench.onset import machine
from tests.bench.row import Row, show

PARTS: dict[str, Callable[[], list[Row]]] = {
    "recorder": recorder.rows,
    "instructions": instructions.rows,
    "steps": steps.rows,
    "attaching": attaching.rows,
    "starting": starting.rows,
    "agent": agent.rows,
    "ingest": ingest.rows,
    "server": server.rows,
    "stragglers": stragglers.rows,
    "fleet": fleet.rows,
    "pages": pages.rows,
    "jobs": jobs.rows,
    "day": day.rows,
    "hostile": hostile.rows,
    "alerts": alerts.rows,
    "postmortem": postmortem.rows,
    "recovery": recovery.rows,
    "takeover": takeover.rows,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all parts or some, print the table as it grows, write JSON. Returns 1 if a budget was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; again for more; default: all")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the rows go")
    given = parser.parse_args(arguments)
    print(machine(), flush=True)
    build.build()
    found: list[Row] = []
    for name in given.only or PARTS:
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        rows = PARTS[name]()
        show(rows)
        found += rows
    given.json.parent.mkdir(parents=True, exist_ok=True)
    written = [{**asdict(row), "ratio": row.ratio} for row in found]
    given.json.write_text(json.dumps({"machine": machine(), "rows": written}, indent=1) + "\n")
    print(f"written to {given.json}")
    return 1 if any(row.met is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
