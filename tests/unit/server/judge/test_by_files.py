"""A verdict on a job that left files says which file each fact is from, and how far two recorders agree."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import FileView
from ncclwatch.contract.model.verdict import Certainty, Verdict
from ncclwatch_server.judge import judge
from tests.scenarios.texts import situation

PARTED = """
world 3
group dp 0-2
history 0-2 dp#1-4 all_reduce train.py:44
in 0-1 dp#5 all_reduce train.py:44 for 20
in 2 dp#5 barrier train.py:60 for 20
"""
KILLED = """
world 3
group dp 0-2
history 0-2 dp#1-4 all_reduce train.py:44
in 0-1 dp#5 all_reduce train.py:44 for 20
ended 2 signal 9 ago 21
"""


TWO_ROOTS = """
world 5
group a 0-2
group b 3-4
history 0-2 a#1-4 all_reduce train.py:44
history 3-4 b#1-4 all_reduce train.py:44
in 0-1 a#5 all_reduce train.py:44 for 20
in 3 b#5 all_reduce train.py:44 for 10
in 4 b#5 barrier train.py:60 for 10
gil 2 for {pulse_s}
"""


def said_all(text: str, *sources: str) -> tuple[Verdict, ...]:
    """Return all that is said of a job whose ranks left these files."""
    snapshot: JobSnapshot = situation(text).snapshot()
    ranks = {
        rank: replace(view, file=FileView(source=source, path=f"/{rank}", timed=True, saw_host=True))
        for (rank, view), source in zip(snapshot.ranks.items(), sources, strict=True)
    }
    return judge(replace(snapshot, ranks=ranks))


def said(text: str, *sources: str) -> Verdict:
    (verdict,) = said_all(text, *sources)
    return verdict


@pytest.mark.parametrize("source", ["ring", "flight recorder"])
def test_what_a_rank_recorded_is_told_as_from_its_file(source: str):
    verdict = said(PARTED, source, source, source)
    assert {fact.source for fact in verdict.evidence if fact.rank == 2} == {source}


def test_how_a_rank_ended_is_told_as_from_a_log_where_no_agent_saw_it():
    sources = {fact.source for fact in said(KILLED, *["ring"] * 3).evidence}
    assert "log" in sources
    assert "agent" not in sources


@pytest.mark.parametrize(
    ("sources", "certainty"),
    [
        (("ring", "ring", "ring"), Certainty.PROVEN),
        (("flight recorder", "flight recorder", "flight recorder"), Certainty.PROVEN),
        (("ring", "ring", "flight recorder"), Certainty.STALLED),
    ],
)
def test_two_recorders_that_count_for_themselves_prove_no_mismatch(sources: tuple[str, ...], certainty: Certainty):
    assert said(PARTED, *sources).certainty is certainty


@pytest.mark.parametrize(("pulse_s", "told"), [(9, [{3, 4}, {2}]), (21, [{2}])])
def test_what_came_up_after_a_rank_had_fallen_silent_may_be_its_aftermath(pulse_s: int, told: list[set[int]]):
    """It may have been killed, which no file tells."""
    found = said_all(TWO_ROOTS.format(pulse_s=pulse_s), *["ring"] * 5)
    assert [{culprit.rank for culprit in each.culprits} for each in found] == told
