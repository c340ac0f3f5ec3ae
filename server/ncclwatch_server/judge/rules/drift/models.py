"""Compares the models that ranks wrap for one group by shape, type and requires_grad, in order; names only tell.

Ranks of other groups (stages of a pipeline, experts) are never compared. A rank that has wrapped less so far may just
be slower: it is compared as far as it has come, and as a whole once it has begun to use what it wrapped.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclwatch.contract.model.preflight import LikeRanks, ModelFacts, Setup

RANKS_ASKED_MAX = 4  # of one difference, for what they have wrapped by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """Ranks that wrapped the same in one way for the same ranks."""

    model: ModelFacts
    ranks: tuple[int, ...]


def differences(setup: Setup) -> tuple[tuple[Wrapped, ...], ...]:
    """Return what was wrapped for one group and is not the same on all ranks that say so: who has what."""
    return tuple(found for wrapped in _by_key(setup.alike) if (found := _apart(wrapped)))


def to_ask(setup: Setup) -> tuple[tuple[tuple[str, str], tuple[int, ...]], ...]:
    """Return whose parameters would show where models part, by key, as far as they are not known yet."""
    found = []
    for sides in differences(setup):
        key = sides[0].model.key
        ranks = tuple(side.ranks[0] for side in sides[:RANKS_ASKED_MAX])
        if not set(ranks) <= set(setup.parameters.get(key, {})):
            found.append((key, ranks))
    return tuple(found)


def _by_key(alike: Iterable[LikeRanks]) -> Iterable[list[Wrapped]]:
    found: dict[tuple[str, str], dict[ModelFacts, list[int]]] = {}
    for ranks in alike:
        for model in ranks.facts.models:
            comparable = model._replace(site=None)
            found.setdefault(model.key, {}).setdefault(comparable, []).extend(ranks.ranks)
    for models in found.values():
        if len(models) > 1:
            yield [Wrapped(model=model, ranks=tuple(sorted(ranks))) for model, ranks in models.items()]


def _apart(wrapped: Sequence[Wrapped]) -> tuple[Wrapped, ...]:
    """Return one entry for each of several models that cannot be the same, () if all may be."""
    sides: list[list[Wrapped]] = []
    # The longest first: what has come less far joins the side that it agrees with.
    for each in sorted(wrapped, key=lambda w: (-len(w.model.units), w.ranks)):
        side = next((side for side in sides if _agree(side[0].model, each.model)), None)
        if side is None:
            sides.append([each])
        else:
            side.append(each)
    if len(sides) < 2:
        return ()
    return tuple(
        Wrapped(model=side[0].model, ranks=tuple(sorted(rank for each in side for rank in each.ranks)))
        for side in sides
    )


def _agree(one: ModelFacts, other: ModelFacts) -> bool:
    """Whether two ranks may go on together, as far as both have come."""
    shared = min(len(one.units), len(other.units))
    if one.units[:shared] != other.units[:shared]:
        return False
    if one.used and other.used and one.used != other.used:
        return False
    # The same names in another order: each parameter is reduced with another one. Names that differ say nothing: they
    # may hold the rank.
    whole = len(one.units) == len(other.units)
    return not (whole and one.names == other.names and one.order != other.order)


def first_difference(parameters: Mapping[int, Sequence[str]], one: int, other: int) -> tuple[str, str] | None:
    """Return the first parameter that two ranks do not share, as each has it, "" for none; None if nobody knows."""
    mine, theirs = parameters.get(one), parameters.get(other)
    if not mine or not theirs:
        return None
    for place in range(max(len(mine), len(theirs))):
        pair = tuple(each[place] if place < len(each) else "" for each in (mine, theirs))
        if _shape(pair[0]) != _shape(pair[1]):
            return pair[0], pair[1]
    for here, there in zip(mine, theirs, strict=True):
        if here != there:
            return here, there
    return None


def _shape(parameter: str) -> str:
    return parameter.partition(" ")[2]
