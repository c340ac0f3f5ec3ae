"""Finds a point in all tapes at which all ranks agree: no operation is under way, each member has issued as many.

From such a cut all that came before can be left out of a replay: it was recorded as through.
"""

from collections.abc import Mapping

from ncclwatch_server.judge.theory.repair.tapes import Channel, Ranks, Tapes


class Counts:
    """Where in each tape each channel's n-th call is."""

    def __init__(self, tapes: Tapes) -> None:
        self.tapes = tapes
        self.places: dict[int, dict[Channel, dict[int, int]]] = {}  # rank -> channel -> seq -> index
        self.channels: dict[int, list[Channel]] = {}  # rank -> of each of its calls
        for rank, tape in tapes.by_rank.items():
            named = {number: tapes.calls[number].channel(rank) for number in set(tape.calls)}
            own = self.channels[rank] = [named[number] for number in tape.calls]
            places: dict[Channel, dict[int, int]] = {}
            for index, channel in enumerate(own):
                places.setdefault(channel, {})[tape.seqs[index]] = index
            self.places[rank] = places
        # Whether all tapes begin with the first call of their rank.
        self.is_whole = all(
            not tape.lost and all(min(own) == 1 for own in self.places[rank].values())
            for rank, tape in tapes.by_rank.items()
        )
        self.from_anyone = any(call.op.is_p2p and call.peer < 0 for call in tapes.calls)

    def sides(self, channel: Channel) -> Ranks:
        """Return the ranks with news that issue in a channel."""
        group, source, target = channel
        ranks = self.tapes.groups.get(group, ()) if source < 0 and target < 0 else (source, target)
        return tuple(rank for rank in ranks if rank in self.tapes.by_rank)

    def issued(self, rank: int, channel: Channel, before: int) -> int:
        """Return how many calls a rank has issued in a channel before an index of its tape, as far as is known."""
        places = self.places[rank].get(channel)
        if not places:
            return self.first(rank, channel)
        return max((seq for seq, index in places.items() if index < before), default=min(places) - 1)

    def first(self, rank: int, channel: Channel) -> int:
        """Return how many calls a rank had issued in a channel when its tape begins."""
        places = self.places[rank].get(channel)
        return min(places) - 1 if places else self.tapes.by_rank[rank].lost.get(channel, 0)


def first_cut(counts: Counts) -> Mapping[int, int] | None:
    """Return the first cut in tapes that do not all begin at the same point; None: there is none before a stop."""
    tapes = counts.tapes
    found = dict.fromkeys(tapes.by_rank, 0)
    if counts.is_whole:
        return found
    if counts.from_anyone:  # who was met is not recorded
        return None
    channels = {channel for own in counts.places.values() for channel in own}
    channels |= {channel for tape in tapes.by_rank.values() for channel in tape.lost}
    issued = {
        channel: max((counts.first(rank, channel) for rank in counts.sides(channel)), default=0) for channel in channels
    }
    todo = set(channels)
    while todo:
        channel = todo.pop()
        for rank in counts.sides(channel):
            if counts.first(rank, channel) >= issued[channel]:
                continue
            index = counts.places[rank].get(channel, {}).get(issued[channel], len(tapes.by_rank[rank].calls))
            if index >= tapes.by_rank[rank].stop:
                return None
            for at in range(found[rank], index + 1):
                passed, seq = counts.channels[rank][at], tapes.by_rank[rank].seqs[at]
                if seq > issued[passed]:
                    issued[passed] = seq
                    todo.add(passed)
            found[rank] = max(found[rank], index + 1)
    return found


def common_cut(counts: Counts, start: Mapping[int, int]) -> Mapping[int, int] | None:
    """Return the first cut from `start` on at which all ranks stand at one point of their program; None: there is none.

    That is right after a collective of all of them. Tapes that begin anywhere else cannot be compared with each other.
    """
    tapes = counts.tapes
    for group, members in tapes.groups.items():
        if not tapes.by_rank.keys() <= set(members):
            continue
        channel: Channel = (group, -1, -1)
        numbered = [counts.places[rank].get(channel, {}) for rank in tapes.by_rank]
        for seq in sorted(numbered[0]):
            found = {rank: places.get(seq, -1) + 1 for rank, places in zip(tapes.by_rank, numbered, strict=True)}
            known = all(at and start[rank] <= at <= tapes.by_rank[rank].stop for rank, at in found.items())
            if known and cut(counts, found) == found:
                return found
    return None


def cut(counts: Counts, at_most: Mapping[int, int]) -> Mapping[int, int] | None:
    """Return the last cut with an index of at most `at_most` in each tape; None: it lies before what is recorded."""
    tapes = counts.tapes
    if counts.from_anyone:  # who was met is not recorded
        return dict.fromkeys(tapes.by_rank, 0) if counts.is_whole else None
    found = {rank: min(at_most.get(rank, len(tape.calls)), len(tape.calls)) for rank, tape in tapes.by_rank.items()}
    limits: dict[Channel, int] = {}
    todo = list(found)
    lowered = {rank: len(tape.calls) + 1 for rank, tape in tapes.by_rank.items()}
    for channel in {channel for own in counts.places.values() for channel in own}:
        least = min((counts.issued(rank, channel, found[rank]) for rank in counts.sides(channel)), default=0)
        limits[channel] = least
    while todo:
        rank = todo.pop()
        index = _lower(counts, rank, found[rank], limits)
        if index < 0:
            return None
        if lowered[rank] == index:
            continue
        found[rank] = lowered[rank] = index
        for channel in counts.places[rank]:
            issued = counts.issued(rank, channel, index)
            if issued < limits[channel]:
                limits[channel] = issued
                todo += [other for other in counts.sides(channel) if other != rank]
    return found


def _lower(counts: Counts, rank: int, index: int, limits: Mapping[Channel, int]) -> int:
    """Return up to where a rank has issued no more than is allowed; -1: not known, for it issued more before."""
    for channel, places in counts.places[rank].items():
        limit = limits[channel]
        if limit < min(places) - 1:
            return -1
        place = places.get(limit + 1)
        if place is not None and place < index:
            index = place
    return index
