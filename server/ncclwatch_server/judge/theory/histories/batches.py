"""Says who ran out of data in a pass over a loader in which others drew more batches."""

from collections.abc import Mapping

from ncclwatch.contract.model.rank import CallSite, RankView


def uneven_counts(
    views: Mapping[int, RankView], short: tuple[int, ...], long: tuple[int, ...]
) -> Mapping[int, int] | None:
    """Return batches drawn by rank, if `short` ran out of data in a pass in which `long` drew more."""
    everyone = sorted((*short, *long))
    for rank in short:
        for mine in views[rank].loaders:
            number = mine.passes if mine.exhausted else mine.passes - 1
            counts = {each: _drawn(views[each], mine.site, number) for each in everyone}
            drawn = counts[rank]
            if any(_still_draws(views[other], mine.site, number) and counts[other] > drawn > 0 for other in long):
                return counts
    return None


def _drawn(view: RankView, site: CallSite, number: int) -> int:
    """Return the batches a rank drew in pass `number` of a loader, 0 if that is not known any more."""
    for loader in view.loaders:
        if loader.site == site:
            return loader.drawn if loader.passes == number else loader.last_drawn if loader.passes > number else 0
    return 0


def _still_draws(view: RankView, site: CallSite, number: int) -> bool:
    return any(each.site == site and each.passes == number and not each.exhausted for each in view.loaders)
