"""Finds the data buckets of which ranks have drawn unequally many batches: where to look for the reason."""

from collections.abc import Iterable, Mapping

from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Evidence
from ncclwatch_server.judge.telling.words import counts_words

BUCKETS_MAX = 4  # told of


def uneven_buckets(
    views: Mapping[int, RankView], counts: Mapping[int, int]
) -> tuple[tuple[str, Mapping[int, int]], ...]:
    """Return the data buckets of which ranks that have drawn these counts have drawn unequally many, by rank.

    Only where the buckets are of the same pass and account for every batch of it.
    """
    found: dict[str, dict[int, int]] = {}
    for rank, count in counts.items():
        buckets = next((each.buckets for each in views[rank].loaders if each.drawn == count and each.buckets), ())
        if sum(drawn for _, drawn in buckets) != count:
            return ()
        for name, drawn in buckets:
            found.setdefault(name, {})[rank] = drawn
    whole = {name: {rank: drawn.get(rank, 0) for rank in counts} for name, drawn in found.items()}
    uneven = [(name, drawn) for name, drawn in whole.items() if len(set(drawn.values())) > 1]
    return tuple(sorted(uneven, key=lambda each: (min(each[1].values()) - max(each[1].values()), each[0])))


def bucket_evidence(views: Mapping[int, RankView], counts: Mapping[int, int]) -> list[Evidence]:
    """Return in one fact where ranks that have drawn these counts of batches differ, nothing where nobody can tell."""
    found = uneven_buckets(views, counts)
    if not found:
        return []
    short = min(counts, key=lambda rank: counts[rank])
    return [Evidence(source="ring", rank=short, fact=f"batches drawn by data bucket: {buckets_words(found)}")]


def buckets_words(buckets: Iterable[tuple[str, Mapping[int, int]]]) -> str:
    """Return "8x3x64x32 (rank 0: 12, rank 1: 10); 8x3x48x48 (...)", the most uneven ones."""
    found = list(buckets)
    phrases = [f"{name} ({counts_words(counts)})" for name, counts in found[:BUCKETS_MAX]]
    return "; ".join([*phrases, "and others"] if len(found) > BUCKETS_MAX else phrases)
