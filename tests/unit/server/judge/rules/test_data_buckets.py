"""Ranks that differ in their batches say in which data buckets."""

from dataclasses import replace

from ncclwatch.contract.model.rank import CallSite, LoaderView, RankView
from ncclwatch_server.judge.rules.frames.data_buckets import BUCKETS_MAX, bucket_evidence
from tests.unit.server.server_values import view

LOOP = CallSite(file="/u/train.py", line=10, function="train")


def drew(rank: int, **buckets: int) -> RankView:
    """Return a rank that has drawn so many batches of each bucket."""
    drawn = sum(buckets.values())
    loader = LoaderView(site=LOOP, passes=1, drawn=drawn, exhausted=False, buckets=tuple(buckets.items()))
    return replace(view(rank), loaders=(loader,))


def facts(*ranks: RankView) -> list[str]:
    """Return what is told of them."""
    views = {each.rank: each for each in ranks}
    return [found.fact for found in bucket_evidence(views, {each.rank: each.loaders[0].drawn for each in ranks})]


def test_the_buckets_that_differ_are_told_the_most_uneven_first():
    said = facts(drew(0, wide=9, high=4, square=3), drew(1, wide=9, high=3), drew(2, wide=9, high=4, square=3))

    assert said == [
        "batches drawn by data bucket: square (ranks 0,2: 3, rank 1: 0); high (ranks 0,2: 4, rank 1: 3)"
    ]  # fmt: skip


def test_few_of_many_are_told():
    many = {f"b{number}": 2 for number in range(BUCKETS_MAX + 2)}

    (said,) = facts(drew(0, **many), drew(1, **dict.fromkeys(many, 1)))

    assert said.count(";") == BUCKETS_MAX
    assert said.endswith("and others")


def test_where_all_are_told_there_are_no_others():
    few = {f"b{number}": 2 for number in range(BUCKETS_MAX)}

    (said,) = facts(drew(0, **few), drew(1, **dict.fromkeys(few, 1)))

    assert said.count(";") == BUCKETS_MAX - 1
    assert "others" not in said


def test_nothing_is_told_where_buckets_do_not_account_for_all_batches():
    seen = drew(1, wide=3).loaders[0]
    for partly in (replace(seen, drawn=5), replace(seen, buckets=())):
        assert facts(drew(0, wide=4), replace(drew(1), loaders=(partly,))) == []


def test_nothing_is_told_where_all_agree():
    assert facts(drew(0, wide=4), drew(1, wide=4)) == []
