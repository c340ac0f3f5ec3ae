"""Tries the prebuilt sides in the torch that they are for, and writes down what ran: docs/native.md.

One torch at a time, in a virtual environment that is removed afterwards: the newest release of a minor version, with
the libraries of CUDA that it cannot be loaded without, and everything else as it is here. Nothing needs a GPU.
"""

import contextlib
import datetime
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import click

from natives.__main__ import MINORS
from ncclwatch.native.build import source_id

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs/native.md"
COLUMNS = ("torch", "Python", "loaded", "native recorder", "Python recorder", "on", "sources")
_LIBRARIES = ("nvidia-", "cuda-")
_RECORDED_OTHERWISE = ("AssertionError: assert [", "AssertionError: assert '")  # other operations, or another wait
_LOAD = """
import json, torch
from ncclwatch.native import loading, prebuilt
from ncclwatch.native.build import NativeError
try:
    loaded = "probed" if loading.load() and loading.where().parent == prebuilt.DIRECTORY else "none"
except NativeError as error:
    loaded = f"refused: {error}"
print(json.dumps([torch.__version__, loaded]))
"""


@click.command(help=__doc__)
@click.option("--torch", "minors", multiple=True, type=click.Choice(MINORS), default=MINORS, help="Default: all.")
@click.option("--coverage/--no-coverage", default=True, help="Run the coverage table, which takes minutes.")
@click.option("--logs", type=click.Path(path_type=Path), default=ROOT / "build/tried", help="Where pytest's words go.")
def main(minors: tuple[str, ...], coverage: bool, logs: Path) -> None:
    """Try one after the other; the table is written after each."""
    logs.mkdir(parents=True, exist_ok=True)
    with _environment() as python:
        for minor in minors:
            _install(python, minor)
            row = _tried(python, logs / f"{minor}.log", coverage=coverage)
            TABLE.write_text(with_row(TABLE.read_text(), minor, row))
            click.echo(" | ".join(row))


@contextlib.contextmanager
def _environment() -> Iterator[Path]:
    """Yield the Python of an environment that has all that this one has, behind what is installed into it."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", name], check=True)
        (site,) = Path(name).glob("lib/python*/site-packages")
        (site / "here.pth").write_text("\n".join([str(ROOT), *(path for path in sys.path if "site-packages" in path)]))
        yield Path(name, "bin/python")


def _install(python: Path, minor: str) -> None:
    """Install a torch and the libraries that it is linked to. What two versions have in common is not fetched twice."""
    pip = (sys.executable, "-m", "pip")
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        asked = ("install", "--dry-run", "--ignore-installed", "-qq", "--report", report.name)
        subprocess.run([*pip, *asked, f"torch=={minor}.*"], check=True, capture_output=True)
        found = [each["metadata"] for each in json.load(report)["install"]]
    wanted = [f"{each['name']}=={each['version']}" for each in found if each["name"].startswith(("torch", *_LIBRARIES))]
    into = ("--python", str(python), "install", "--no-deps", "--no-cache-dir", "-qq")
    subprocess.run([*pip, *into, *wanted], check=True)


def _tried(python: Path, log: Path, *, coverage: bool) -> tuple[str, ...]:
    """Load the prebuilt sides, run the coverage table with both recorders, and return the row."""
    asked = subprocess.run([python, "-c", _LOAD], capture_output=True, text=True, cwd=ROOT)
    version, loaded = json.loads(asked.stdout) if asked.returncode == 0 else ("-", asked.stderr.splitlines()[-1])
    ran = _covered(python, log) if coverage else ("not run", "not run")
    this_python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (version, this_python, loaded, *ran, datetime.datetime.now(datetime.UTC).date().isoformat(), source_id())


def _covered(python: Path, log: Path) -> tuple[str, str]:
    results = log.with_suffix(".xml")
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", results, "tests/coverage/test_coverage.py")
    with log.open("w") as words:
        subprocess.run([python, *tests], cwd=ROOT, stdout=words, stderr=subprocess.STDOUT)
    cases = [*ElementTree.parse(results).iter("testcase")]
    return (summary(cases, "native"), summary(cases, "python"))


def summary(cases: list[ElementTree.Element], recorder: str) -> str:
    """Say how many of a recorder's tests passed, what was recorded in another way, and what failed."""
    mine = [case for case in cases if f"[{recorder}" in case.get("name", "")]
    otherwise: list[str] = []
    failed: list[str] = []
    for case in mine:
        trouble = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        if trouble is not None:
            recorded = trouble.get("message", "").startswith(_RECORDED_OTHERWISE)
            (otherwise if recorded else failed).append(_subject(case.get("name", ""), recorder))
    words = f"{len(mine) - len(otherwise) - len(failed)} of {len(mine)}"
    words += f"; recorded otherwise: {', '.join(otherwise)}" if otherwise else ""
    return words + (f"; failed: {', '.join(failed)}" if failed else "")


def _subject(name: str, recorder: str) -> str:
    """Return the row of the coverage table that a test is about, or what the test is named."""
    row = re.search(rf"\[{recorder}-(\w+)\]$", name)
    return row[1] if row else name.removesuffix(f"[{recorder}]").removeprefix("test_").replace("_", " ")


def with_row(document: str, minor: str, row: tuple[str, ...]) -> str:
    """Return a document whose table has this row for a minor version, in the order of the versions."""
    lines = document.splitlines()
    first = lines.index("|" + " --- |" * len(COLUMNS)) + 1
    last = next((n for n in range(first, len(lines)) if not lines[n].startswith("|")), len(lines))
    kept = [line for line in lines[first:last] if not line.startswith(f"| {minor}.")]
    kept.append(f"| {' | '.join(row)} |")
    kept.sort(key=lambda line: [int(part) for part in re.findall(r"\d+", line)[:3]])
    return "\n".join([*lines[:first], *kept, *lines[last:]]) + "\n"


if __name__ == "__main__":
    main()
