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


def said(text: str, *sources: str) -> Verdict:
    """Return what is said of a job whose ranks left these files."""
    snapshot: JobSnapshot = situation(text).snapshot()
    ranks = {
        rank: replace(view, file=FileView(source=source, path=f"/{rank}", timed=True, saw_host=True))
        for (rank, view), source in zip(snapshot.ranks.items(), sources, strict=True)
    }
    (verdict,) = judge(replace(snapshot, ranks=ranks))
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
