"""The documents name tests and files that exist, and each module says what it does."""

import importlib.util
import re
from pathlib import Path

import pytest

from ncclwatch.contract.model.verdict import Cause

ROOT = Path(__file__).parents[2]
MODULES = [
    path for place in ("ncclwatch", "agent", "server", "grafana", "tests") for path in (ROOT / place).rglob("*.py")
]
# One line that ends the docstring or has a blank one behind it, and that asks nothing.
STATES = re.compile(r'r?"""[^?"\n][^?\n]*("""\n|\n\n)')
WALK = re.findall(r"^\| \d+ \| `([^`]+)`", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"), re.MULTILINE)
DOCUMENTS = [
    *("README.md", "SECURITY.md", "CONTRIBUTING.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
PARTS = ("What it looks like", "Why it happens", "How to fix it")  # of the page of a cause
NAMED = re.findall(r"(tests/\S+\.py)::(test_\w+)", (ROOT / "docs/threat-model.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_each_assumption_of_the_threat_model_has_a_test(file: str, test: str) -> None:
    assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_the_threat_model_names_tests() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files(document: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", (ROOT / document).read_text(encoding="utf-8"))
    missing = [link for link in links if not (ROOT / document).parent.joinpath(link).exists()]
    assert missing == []


def test_links_of_the_site_stay_on_it() -> None:
    docs = ROOT / "docs"
    found = [
        (page.name, link)
        for page in docs.rglob("*.md")
        for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if docs not in page.parent.joinpath(link).resolve().parents
    ]
    assert found == []


def test_what_make_runs_exists() -> None:
    named = set(re.findall(r"/python -m ([\w.]+)", (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert len(named) > 10
    assert [each for each in sorted(named) if importlib.util.find_spec(each) is None] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_in_python_compile(document: str) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.M | re.S):
        compile(block, document, "exec")


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.value)
def test_each_cause_has_a_page_that_is_listed(cause: Cause) -> None:
    page = f"verdicts/{cause.value.replace('_', '-')}.md"
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [part for part in PARTS if f"\n## {part}\n" not in text] == []
    assert f"- {page}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"[{cause.value}](" in (ROOT / "docs/verdicts/index.md").read_text(encoding="utf-8")


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_a_collective_walks_to_its_sentence_through_25_files_at_most_and_all_of_them_exist() -> None:
    assert 20 < len(WALK) <= 25
    assert [name for name in WALK if not (ROOT / name).is_file()] == []


def test_the_first_line_of_each_module_states_what_it_does() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in MODULES}
    silent = [name for name, text in sorted(texts.items()) if text and not STATES.match(text)]
    assert silent == []


def test_the_modules_are_found() -> None:
    assert len(MODULES) > 900
