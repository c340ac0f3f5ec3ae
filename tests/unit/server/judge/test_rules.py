"""Each cause has one rule, theory names no cause, and a verdict is made in one place."""

import re
from pathlib import Path

import pytest

from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server import judge
from ncclwatch_server.judge.rules import ADVICE, RULES

FOLDER = Path(judge.__file__).parent
THEORY = sorted((FOLDER / "theory").rglob("*.py"))


@pytest.mark.parametrize("cause", Cause)
def test_each_cause_has_one_rule_in_a_module_of_its_name(cause: Cause) -> None:
    assert [rule.cause for rule in RULES].count(cause) == 1
    assert (FOLDER / f"rules/{cause.value}.py").is_file()


@pytest.mark.parametrize("cause", Cause)
def test_each_cause_has_an_advice(cause: Cause) -> None:
    assert ADVICE[cause].endswith(".")


@pytest.mark.parametrize("module", THEORY, ids=lambda path: path.stem)
def test_theory_names_no_cause(module: Path) -> None:
    assert not re.search(r"\bCause\b", module.read_text(encoding="utf-8"))


def test_a_verdict_is_made_in_one_place() -> None:
    made = [path.name for path in FOLDER.rglob("*.py") if re.search(r"\bVerdict\(", path.read_text(encoding="utf-8"))]
    assert made == ["verdicts.py"]
