"""Verdicts are short and plain: the culprit, what it did, who waits for it, then the fix."""

import re
from pathlib import Path

import pytest

from ncclwatch.contract.model.verdict import Severity, Verdict
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey
from ncclwatch_server.incidents.terminal_text import BRIEF_LINES, brief
from ncclwatch_server.judge import judge
from tests.scenarios.texts import FILES, SEPARATOR, situation

HEADLINE_WORDS, WORDS = 45, 60  # of a headline; of that and the first sentence of the advice
AVOIDED = re.compile(r"never meet|each other|stands? still|stands? in|the others\b|nobody|is told|has not come|neither")
PAGES = [page for page in sorted((Path(__file__).parents[2] / "docs/verdicts").glob("*.md")) if page.stem != "index"]


def _verdicts() -> list[tuple[str, Verdict]]:
    return [
        (path.stem, verdict)
        for path in FILES
        for verdict in judge(situation(path.read_text().partition(SEPARATOR)[0]).snapshot())
    ]


@pytest.fixture(scope="module", name="verdicts")
def _fixture() -> list[tuple[str, Verdict]]:
    return _verdicts()


def test_culprit_and_fix_are_known_after_sixty_words(verdicts: list[tuple[str, Verdict]]) -> None:
    long = []
    for name, verdict in verdicts:
        first = re.split(r"(?<=\.)\s+(?=[A-Z])", verdict.advice)[0]
        words = len(verdict.summary.split())
        if words > HEADLINE_WORDS or words + len(first.split()) > WORDS:
            long.append(f"{name}: {words} + {len(first.split())}: {verdict.summary} {first}")
    assert long == []


def test_headlines_are_plain(verdicts: list[tuple[str, Verdict]]) -> None:
    odd = [f"{name}: {found[0]!r}: {v.summary}" for name, v in verdicts if (found := AVOIDED.search(v.summary))]
    assert odd == []


def test_a_headline_is_one_sentence_and_begins_with_ranks_or_with_what_is_wrong(
    verdicts: list[tuple[str, Verdict]],
) -> None:
    for name, verdict in verdicts:
        if verdict.severity is Severity.CRITICAL:
            assert verdict.summary.endswith("."), name
            assert re.match(r"ranks? \d|one of ranks|deadlock|the ranks|ranks ", verdict.summary), verdict.summary


def test_advice_calls_no_rank_at_work_of_which_the_headline_says_that_it_shows_no_activity(
    verdicts: list[tuple[str, Verdict]],
) -> None:
    wrong = [name for name, v in verdicts if "no activity" in v.summary and "No rank is stuck" in v.advice]
    assert wrong == []


def test_the_brief_text_has_ten_lines_and_the_fix(verdicts: list[tuple[str, Verdict]]) -> None:
    long = []
    for name, verdict in verdicts:
        incident = Incident(
            id="0123456789ab", key=JobKey(name="job", instance="i", attempt=0), job="job", world_size=8,
            state=IncidentState.OPEN, verdict=verdict, onset_to_open_s=2.0, opened_at=1e9,
        )  # fmt: skip
        for width in (60, 80, 100):
            lines = brief(incident, width)
            if len(lines) > BRIEF_LINES or not any(line.startswith("  do ") for line in lines):
                long.append("\n".join([f"{name}, {width} columns", *lines]))
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_the_judge_says(page: Path, verdicts: list[tuple[str, Verdict]]) -> None:
    block = re.search(r"^```text\nncclwatch: [A-Z]+ (.*?)^  \w+ ", page.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    headline = " ".join(block[1].split())
    cause = page.stem.replace("-", "_")
    assert headline in {" ".join(v.summary.split()) for _, v in verdicts if v.cause.value == cause}
