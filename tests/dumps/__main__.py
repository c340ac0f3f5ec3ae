"""Counts how often the truth of drawn jobs is told: python -m tests.dumps --seeds 50 --kinds host_stopped,healthy."""

import argparse
import json
import time
from dataclasses import asdict

from tests.dumps.flight_recorder import Form
from tests.dumps.rival import by_torchfrtrace
from tests.dumps.score import KINDS, Grade, Row, Tally, score


def main() -> None:
    """Run the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="number of the first seed")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--world", type=int, default=16)
    parser.add_argument("--version", default="2.9", choices=["2.9", "2.10"])
    parser.add_argument("--full", action="store_true", help="with finished operations and stacks")
    parser.add_argument("--written", default="pickle", choices=["pickle", "json"])
    parser.add_argument("--rival", action="store_true", help="ask torchfrtrace, too")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--missed", action="store_true", help="name the seeds that were not right")
    chosen = parser.parse_args()
    form = Form(
        version=chosen.version, only_active=not chosen.full, stacks=chosen.full, as_json=chosen.written == "json"
    )
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    began = time.monotonic()
    rows = []
    for kind in chosen.kinds.split(","):
        row, *_ = score([kind], seeds, world=chosen.world, form=form, rival=by_torchfrtrace if chosen.rival else None)
        rows.append(row)
        if not chosen.json:
            print(_line(row, chosen.seeds, chosen.rival), flush=True)
            print(_missed(row) if chosen.missed else "", end="", flush=True)
    if chosen.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print(f"{time.monotonic() - began:.0f} s")


def _line(row: Row, count: int, rival: bool) -> str:
    other = f"  torchfrtrace {_tally(row.rival)}" if rival else ""
    return f"{row.kind:32} files {_tally(row.files)}  live {_tally(row.live)}  agree {row.agree}/{count}{other}"


def _tally(tally: Tally) -> str:
    counts = " ".join(f"{grade.value} {tally.grades[grade]}" for grade in Grade)
    return f"[{counts}; named for certain {tally.named}, innocents {tally.blamed}]"


def _missed(row: Row) -> str:
    tallies = {"files": row.files, "live": row.live}
    return "".join(f"    {name} missed {each.missed} said {dict(each.causes)}\n" for name, each in tallies.items())


main()
