"""Says who ran out of data in a pass over a loader in which others drew more batches."""

from collections.abc import Iterable, Mapping

from ncclwatch.contract.model.rank import CallSite, RankView
from ncclwatch_server.judge.theory.majority import majority

Furthest = Mapping[tuple[CallSite, int], int]  # (line of a loader, pass over it) -> batches drawn by one still in it


def furthest(views: Mapping[int, RankView], ranks: Iterable[int]) -> Furthest:
    """Return how many batches the furthest of these ranks has drawn in each pass that it is still in."""
    found: dict[tuple[CallSite, int], int] = {}
    for rank in ranks:
        for each in views[rank].loaders:
            if not each.exhausted:
                key = each.site, each.passes
                found[key] = max(found.get(key, 0), _drawn(views[rank], *key))
    return found


def ran_out(view: RankView, others: Furthest, *, gone: bool = False) -> tuple[CallSite, int] | None:
    """Return the pass in which a rank ran out of data while another one drew more, None if there is none.

    Of ranks that live, one without any batch may do other work by design. `gone`: others need it, and it has left.
    """
    for mine in view.loaders:
        key = mine.site, mine.passes if mine.exhausted else mine.passes - 1
        drawn = _drawn(view, *key)
        if others.get(key, 0) > drawn and (drawn or (gone and mine.exhausted)):
            return key
    return None


def ran_out_as_well(views: Mapping[int, RankView], gone: Iterable[int], waiting: Iterable[int]) -> tuple[int, ...]:
    """Return who of those that wait ran out of data in the same pass as those that are gone."""
    waiting = tuple(waiting)
    others = furthest(views, waiting)
    passes = {each for rank in gone if (each := ran_out(views[rank], others, gone=True)) is not None}
    return tuple(rank for rank in waiting if ran_out(views[rank], others, gone=True) in passes)


def uneven_counts(
    views: Mapping[int, RankView], short: tuple[int, ...], long: tuple[int, ...], *, gone: bool = False
) -> Mapping[int, int] | None:
    """Return batches drawn by rank, if `short` ran out of data in a pass in which `long` drew more."""
    if not any(views[rank].loaders for rank in short):
        return None
    others = furthest(views, long)
    found = next((each for rank in short if (each := ran_out(views[rank], others, gone=gone)) is not None), None)
    return {rank: _drawn(views[rank], *found) for rank in sorted((*short, *long))} if found is not None else None


def drew_few(views: Mapping[int, RankView], short: tuple[int, ...], long: tuple[int, ...]) -> bool:
    """Say whether `short` ran out of data in a pass in which most ranks of the job drew more, in whatever group."""
    few, more, _ = _few_and_more(views, short, long)
    return bool(more) and majority((more, few)) is more


def odd_in_pass(views: Mapping[int, RankView], short: tuple[int, ...], long: tuple[int, ...]) -> tuple[int, ...]:
    """Return `short`, who ran out of data in a pass, or `long`, who drew more, if most ranks of the job ran out there.

    Both, where it depends on ranks that are still in the pass and may draw more yet.
    """
    few, more, drawing = _few_and_more(views, short, long)
    if not few or majority((more, few)) is not few:
        return short
    return long if majority(((*more, *drawing), few)) is few else tuple(sorted((*short, *long)))


def _few_and_more(
    views: Mapping[int, RankView], short: tuple[int, ...], long: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of the job that ran out of data where `short` did, that drew more there, and that draw yet."""
    others = furthest(views, long)
    found = next((each for rank in short if (each := ran_out(views[rank], others)) is not None), None)
    if found is None:
        return (), (), ()
    most = max(_drawn(views[rank], *found) for rank in short)
    more = tuple(rank for rank, view in views.items() if _drawn(view, *found) > most)
    few = tuple(rank for rank, view in views.items() if rank not in more and ran_out(view, others) == found)
    drawing = tuple(rank for rank, view in views.items() if rank not in more and _is_in(view, *found))
    return few, more, drawing


def _is_in(view: RankView, site: CallSite, number: int) -> bool:
    return any((each.site, each.passes, each.exhausted) == (site, number, False) for each in view.loaders)


def _drawn(view: RankView, site: CallSite, number: int) -> int:
    """Return the batches a rank drew in pass `number` of a loader, 0 if that is not known any more."""
    for loader in view.loaders:
        if loader.site == site:
            return loader.drawn if loader.passes == number else loader.last_drawn if loader.passes > number else 0
    return 0
