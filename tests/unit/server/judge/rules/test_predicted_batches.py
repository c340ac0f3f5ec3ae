"""When a hang at the end of an epoch is foretold, and of which healthy jobs nothing is said."""

from dataclasses import replace

import pytest

from ncclwatch.contract.config import EVEN_BATCHES_GROUP
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import CallSite, Ending, GroupView, LoaderView, Op, OpView, RankView, SourceNote
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity, Verdict
from ncclwatch_server.judge import judge
from tests.unit.server.server_values import view

LOOP = CallSite(file="/u/train.py", line=10, function="train")
STEP = CallSite(file="/u/train.py", line=14, function="train")
OTHER = CallSite(file="/u/valid.py", line=5, function="validate")
NOTE = SourceNote(site=STEP, text="loss.backward()", loop="for x, y in loader", loop_lines=(10, 16))


def rank(number: int, length: int, *, drawn: int = 6, **changes: object) -> RankView:
    """Return a rank in its first pass over a loader, with one all_reduce for each batch."""
    loader = LoaderView(site=LOOP, passes=1, drawn=drawn, exhausted=False, length=length)
    history = tuple(
        OpView(group="0", seq=n, op=Op.ALL_REDUCE, site=STEP, batch=n, loader=1, completed=True)
        for n in range(1, drawn + 1)
    )
    group = GroupView(name="0", desc="default_pg", ranks=(0, 1, 2), enqueued=drawn, completed=drawn, prefix_hash=1)
    seen = replace(view(number), loaders=(loader,), history=history, groups=(group,), sources=(NOTE,))
    return replace(seen, **changes)  # type: ignore[arg-type]


def said(*ranks: RankView) -> tuple[Verdict, ...]:
    """Return what the judge says of these ranks."""
    return judge(JobSnapshot(job="j", world_size=4, ranks={r.rank: r for r in ranks}, stacks={}, silent={}))


def loader(of: RankView, **changes: object) -> RankView:
    """Return a rank with other facts about its loader."""
    return replace(of, loaders=(replace(of.loaders[0], **changes),))  # type: ignore[arg-type]


def test_a_shorter_loader_is_foretold_with_ranks_and_counts():
    (verdict,) = said(rank(0, 49), rank(1, 47), rank(2, 49))

    assert (verdict.cause, verdict.severity, verdict.certainty) == (
        Cause.UNEVEN_BATCHES, Severity.WARNING, Certainty.LATE,
    )  # fmt: skip
    assert verdict.predicted
    assert [c.rank for c in verdict.culprits] == [1]
    assert verdict.victims == (0, 2)
    assert "rank 1 has 47 batches in the loop at train.py:10" in verdict.summary
    assert "and ranks 0,2 have more (ranks 0,2: 49, rank 1: 47)" in verdict.summary
    assert "even_batches" in verdict.advice


def test_one_longer_loader_is_foretold_with_ranks_and_counts():
    (verdict,) = said(rank(0, 47), rank(1, 47), rank(2, 49))

    assert "ranks 0-1 have 47 batches in the loop at train.py:10, and rank 2 has more" in verdict.summary


def test_it_is_foretold_in_a_job_of_two_ranks():
    (dp,) = rank(0, 49).groups
    pair = replace(dp, ranks=(0, 1))

    (verdict,) = said(rank(0, 49, groups=(pair,)), rank(1, 47, groups=(pair,)))

    assert "rank 1 has 47 batches in the loop at train.py:10, and rank 0 has more" in verdict.summary


def test_a_loader_without_length_is_foretold_when_one_rank_is_out_of_data():
    gone = loader(rank(1, 0), exhausted=True, last_drawn=6)

    (verdict,) = said(rank(0, 0, drawn=8), gone)

    assert verdict.summary.startswith("a hang is coming: rank 1 has 6 batches")


def test_what_a_loader_says_of_its_length_does_not_count_once_it_is_out_of_data():
    gone = loader(rank(1, 9), exhausted=True, last_drawn=6)

    assert said(rank(0, 9, drawn=8), gone)


@pytest.mark.parametrize(
    "ranks",
    {
        "equal lengths": (rank(0, 49), rank(1, 49)),
        "one is out of data that its length did not tell, the other not far behind": (
            rank(0, 9, drawn=6),
            loader(rank(1, 9), exhausted=True, last_drawn=6),
        ),
        "nobody knows a length": (rank(0, 0), rank(1, 0)),
        "in different passes": (rank(0, 49), loader(rank(1, 47), passes=2, last_drawn=47)),
        "kept together": (loader(rank(0, 49), even=True), loader(rank(1, 47), even=True)),
        "uneven before, and that went well": (
            loader(rank(0, 49), passes=2, last_drawn=49),
            loader(rank(1, 47), passes=2, last_drawn=47),
        ),
        "the pass before was left early": (loader(rank(0, 49), passes=2), loader(rank(1, 47), passes=2)),
        "too early to tell": (rank(0, 49, drawn=3), rank(1, 47, drawn=3)),
        "one has no collectives in the loop": (rank(0, 49), rank(1, 47, history=())),
        "a collective for every second batch": (rank(0, 49), rank(1, 47, history=rank(1, 47).history[::2])),
        "collectives of even_batches only": tuple(
            rank(n, 47 + n, groups=(replace(rank(n, 1).groups[0], desc=EVEN_BATCHES_GROUP),)) for n in (0, 1)
        ),
        "no group in common": tuple(
            rank(n, 47 + n, groups=(replace(rank(n, 1).groups[0], ranks=(n, n + 2)),)) for n in (0, 1)
        ),
        "no source": (rank(0, 49), rank(1, 47, sources=())),
        "the source of another loop": tuple(
            rank(n, 47 + n, sources=(replace(NOTE, loop_lines=(9, 16)),)) for n in (0, 1)
        ),
        "all are out of data": tuple(loader(rank(n, 0, drawn=6 + n), exhausted=True) for n in (0, 1)),
        "the short rank has ended": (rank(0, 49), rank(1, 47, ending=Ending(kind="vanished"))),
        "loops at different lines": (
            rank(0, 49),
            loader(rank(1, 47, sources=(replace(NOTE, site=OTHER, loop_lines=(5, 9)),)), site=OTHER),
        ),
    }.items(),
    ids=lambda item: item[0],
)
def test_nothing_is_foretold(ranks: tuple[str, tuple[RankView, ...]]):
    assert [verdict for verdict in said(*ranks[1]) if verdict.predicted] == []


@pytest.mark.parametrize(
    "note",
    [
        replace(NOTE, loop="for step, (x, y) in zip(range(steps), loader)"),
        replace(NOTE, loop="for x, y in itertools.islice(loader, steps)"),
        replace(NOTE, loop_escapes=("15: if step == steps: break",)),
        replace(NOTE, loop_escapes=("15: if done(step): return",)),
    ],
    ids=["zip", "islice", "break", "return"],
)
def test_nothing_is_foretold_of_a_loop_that_may_end_before_its_loader(note: SourceNote):
    assert said(*(rank(n, 47 + n, sources=(note,)) for n in (0, 1))) == ()


def test_a_loop_that_skips_batches_is_still_foretold():
    note = replace(NOTE, loop_escapes=("12: if x is None: continue",))

    assert said(*(rank(n, 47 + n, sources=(note,)) for n in (0, 1)))


def test_equal_counts_before_do_not_excuse_unequal_lengths_now():
    again = tuple(loader(rank(n, 47 + n), passes=2, last_drawn=50) for n in (0, 1))

    assert [verdict.predicted for verdict in said(*again)] == [True]


def test_a_prediction_stands_beside_what_else_is_wrong():
    other = rank(1, 47)
    other = replace(other, groups=(replace(other.groups[0], prefix_hash=2),))

    assert [verdict.predicted for verdict in said(rank(0, 49), other)] == [False, True]
