"""Compare what tools say of the programs of the zoo: who is at fault, at which line, after how long.

python -m tests.compare [--only z01,z09] [--kept FILE] [--page FILE] [--minutes M] [--logs DIR]

Each program runs three times: under ncclwatch, alone (its stacks and Flight Recorder dumps are taken ten seconds after
the onset), and with TORCH_DISTRIBUTED_DEBUG=DETAIL. Hours for the whole zoo: what was found is kept, and the next run
goes on after it.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.compare.rows import TOOLS, Row, by_program, row_of, table
from tests.compare.witnesses import by_detail, by_looking, by_ncclwatch
from tests.zoo.truth import Expect, Truth, load_all

FOUND = Path("build/compare/found.jsonl")
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.compare", description=__doc__)
    parser.add_argument("--only", default="", help="ids of programs")
    parser.add_argument("--kept", type=Path, default=FOUND, help="what was found before; delete it to run all anew")
    parser.add_argument("--page", type=Path, help="write the tables into this page, between its marks")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no program after so long")
    parser.add_argument("--logs", type=Path, help="keep what the programs and tools print here")
    given = parser.parse_args()
    truths = load_all(tuple(filter(None, given.only.split(","))))
    given.kept.parent.mkdir(parents=True, exist_ok=True)
    rows = _known(given.kept)
    until_s = time.monotonic() + given.minutes * 60
    for truth in truths:
        if time.monotonic() >= until_s:
            break
        if {(truth.id, tool) for tool in TOOLS} <= {(row.program, row.tool) for row in rows}:
            continue
        with tempfile.TemporaryDirectory(prefix="compare-", dir="/dev/shm", ignore_cleanup_errors=True) as directory:
            place = given.logs / truth.id if given.logs else Path(directory)
            for row in _rows(truth, place):
                rows.append(row)
                with given.kept.open("ab") as file:
                    file.write(msgspec.json.encode(row) + b"\n")
                print(f"{row.program:<8}{row.tool:<18}{row.words}", flush=True)
    text = table(rows)
    print(text)
    if given.page:
        before, rest = given.page.read_text().split(BEGIN)
        given.page.write_text(f"{before}{BEGIN}\n{text}\n{by_program(load_all(), rows)}{END}{rest.split(END)[1]}")
    return 0


def _rows(truth: Truth, directory: Path) -> Iterator[Row]:
    yield row_of(truth, "ncclwatch", by_ncclwatch(truth, directory / "ncclwatch"))
    seen = by_looking(truth, directory / "alone") if truth.expect is Expect.HANG else {}
    for tool in ("flight recorder", "repaired", "py-spy"):
        yield row_of(truth, tool, seen.get(tool))
    yield row_of(truth, "DETAIL", by_detail(truth, directory / "detail"))


def _known(kept: Path) -> list[Row]:
    lines = kept.read_bytes().splitlines() if kept.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines]


if __name__ == "__main__":
    raise SystemExit(main())
