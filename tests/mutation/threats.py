"""Take away each assumption of docs/threat-model.md in a copy of the tree, and see whether the test of its row fails.

`python -m tests.mutation.threats` tries all of them, `python -m tests.mutation.threats report_file` those whose test or
file has that in its name. A test that fails without any change, or was skipped, shows nothing: its rows are "not run".
Returns 1 if a test noticed nothing, or a change no longer applies.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutation.threat_table import CHANGES, Change

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "docs/threat-model.md"
LIMIT_S = 240
_ROW = re.compile(r"^\| (?P<assumption>[^|]+) \| [^|]+ \| (?P<test>tests/\S+\.py::test_\w+) \|$", re.MULTILINE)


def rows() -> dict[str, str]:
    """Return the assumption of each row by the test that it names."""
    return {found["test"]: found["assumption"] for found in _ROW.finditer(MODEL.read_text(encoding="utf-8"))}


def applied(change: Change, root: Path = ROOT) -> str:
    """Return the text of a file with a change. Raises ValueError if what it replaces does not stand there once."""
    text = (root / change.file).read_text(encoding="utf-8")
    if text.count(change.was) != 1:
        raise ValueError(f"{change.file} has {text.count(change.was)} times: {change.was}")
    return text.replace(change.was, change.now)


@contextmanager
def copy() -> Iterator[Path]:
    """Make a copy of what git knows of the tree, which other users can read as well."""
    with tempfile.TemporaryDirectory(prefix="ncclwatch-threats-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        known = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(known, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode()
        for file in filter(None, listed.split("\0")):
            if (ROOT / file).is_file():
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, place / file)
        yield place


def outcome(test: str, place: Path) -> str:
    """Return how a test ended in a copy: "passed", "failed", or why it says nothing."""
    paths = [str(place / part) for part in ("", "agent", "server")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs", test]
    try:
        done = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return "failed"  # it would have waited for ever
    if done.returncode == 0:
        return "skipped" if "SKIPPED" in done.stdout else "passed"
    return "failed" if done.returncode == 1 else f"pytest ended with {done.returncode}"


def tried(test: str, changes: Sequence[Change], place: Path) -> Iterator[tuple[Change, str]]:
    """Yield what became of each change: "noticed", "SURVIVES", "DOES NOT APPLY" or "not run: ..."."""
    sound = outcome(test, place)
    for change in changes:
        if sound != "passed":
            yield change, f"not run: without a change it was {sound}"
            continue
        path = place / change.file
        before = path.read_text(encoding="utf-8")
        try:
            path.write_text(applied(change, place), encoding="utf-8")
        except ValueError:
            yield change, "DOES NOT APPLY"
            continue
        ended = outcome(test, place)
        path.write_text(before, encoding="utf-8")
        words: Mapping[str, str] = {"failed": "noticed", "passed": "SURVIVES"}
        yield change, words.get(ended, f"not run: with the change it was {ended}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the changes and print a line for each. Returns 1 if one was not noticed or does not apply."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.threats", description=__doc__)
    parser.add_argument("names", nargs="*", help="only tests or files with this in their names")
    names: list[str] = parser.parse_args(arguments).names
    assumptions, bad = rows(), 0
    with copy() as place:
        for test, changes in CHANGES.items():
            chosen = [c for c in changes if not names or any(name in test or name in c.file for name in names)]
            for change, found in tried(test, chosen, place) if chosen else ():
                bad += found in ("SURVIVES", "DOES NOT APPLY")
                print(
                    f"{found:9}  {assumptions.get(test, '?')}  ({change.file}: {test.partition('::')[2]})", flush=True
                )
    print(f"{bad} not noticed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
