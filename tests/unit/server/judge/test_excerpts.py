"""The source that goes with a verdict: the culprit's line first, then that of the ranks that wait."""

from dataclasses import replace

from ncclwatch.contract.model.rank import CallSite, RankView, SourceNote
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server.judge import judge
from tests.scenarios.situation.words import site_of
from tests.scenarios.texts import FILES, read

CULPRIT, OTHERS = site_of("train.py:50"), site_of("train.py:44")


def judged(*notes: SourceNote, of_ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Verdict:
    """Return the verdict on rank 3 of 4, whose barrier is under a test of the rank."""
    (path,) = (each for each in FILES if each.stem == "aborted_by_a_mismatch")
    snapshot = read(path)[0].snapshot()

    def seen(view: RankView) -> RankView:
        return replace(view, sources=notes) if view.rank in of_ranks else view

    (said,) = judge(replace(snapshot, ranks={rank: seen(view) for rank, view in snapshot.ranks.items()}))
    return said


def note(site: CallSite, condition_line: int = 0) -> SourceNote:
    lines = ((site.line - 1, "x = 1"), (site.line, "call()"))
    return SourceNote(site=site, text="call()", condition_line=condition_line, around=lines)


def test_the_culprits_source_comes_first_and_the_test_is_marked():
    said = judged(note(OTHERS), note(CULPRIT, condition_line=49))
    assert [(each.site, each.test_line) for each in said.excerpts] == [(CULPRIT, 49), (OTHERS, 0)]
    assert said.excerpts[0].lines == ((49, "x = 1"), (50, "call()"))


def test_one_node_that_has_read_the_file_is_enough():
    assert [each.site for each in judged(note(OTHERS), of_ranks=(1,)).excerpts] == [OTHERS]


def test_there_is_no_source_where_nobody_has_read_it():
    assert judged(SourceNote(site=CULPRIT, text="call()")).excerpts == ()
