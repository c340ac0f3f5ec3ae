"""No module has grown past one subject, and no package past what a newcomer can overlook."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES_MAX = 500
MODULES_MAX = 12  # of one package, beside its packages
MODULES = [
    path.relative_to(ROOT)
    for place in ("ncclwatch", "agent", "server", "grafana", "tests")
    for path in (ROOT / place).rglob("*.py")
]
LONG = {"tests/coverage/rows.py"}  # one short function for each way to move data: a table, and its order counts
WIDE = {
    # One module for each cause, patch, command, place to send alerts to, page or reader: as many as there are things.
    "server/ncclwatch_server/judge/rules",
    "ncclwatch/cli/commands",
    "ncclwatch/rank/patches",
    "server/ncclwatch_server/notify",
    "server/ncclwatch_server/ui",
    "server/ncclwatch_server/offline",
    # The same of tests, and of the programs that they run.
    "tests/unit/rank/patches",
    "tests/integration",
    "tests/integration/programs",
    "tests/zoo/programs",
    "tests/bench",
}


def test_a_module_that_is_longer_than_its_subject_is_divided() -> None:
    lengths = {str(path): (ROOT / path).read_text(encoding="utf-8").count("\n") for path in MODULES}
    assert {name for name, lines in lengths.items() if lines > LINES_MAX} <= LONG


def test_a_package_that_lies_flat_beyond_a_dozen_modules_is_divided() -> None:
    flat = Counter(str(path.parent) for path in MODULES if path.name != "__init__.py")
    assert {name for name, modules in flat.items() if modules > MODULES_MAX} <= WIDE
