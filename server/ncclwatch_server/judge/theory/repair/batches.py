"""Finds ranks that drew another number of batches than all others: a loop that ended early, or went on for too long."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from ncclwatch_server.judge.theory.repair.peers import Roles
from ncclwatch_server.judge.theory.repair.tapes import Tape

_ALIKE_MIN = 2  # ranks that must agree against one


def odd_ranks(roles: Roles, cut: Mapping[int, int]) -> frozenset[int]:
    """Return the ranks that drew more or fewer batches than the others when they made the same call, from a cut on."""
    by_call: dict[Hashable, dict[int, int]] = {}
    for rank, tape in roles.tapes.by_rank.items():
        made: Counter[int] = Counter()
        for at in range(cut.get(rank, 0), min(tape.stop + 1, len(tape.batches))):
            call = roles.calls[tape.calls[at]]
            role = roles.role(rank, tape.calls[at])
            made[role] += 1
            if not call.op.is_p2p:
                by_call.setdefault((role, made[role]), {})[rank] = tape.batches[at]
    found = {rank for drawn in by_call.values() for rank in _odd(drawn)}
    return frozenset(found | set(_odd_in_loops(roles.tapes.by_rank.values())))


def _odd(values: Mapping[int, int]) -> list[int]:
    counts = Counter(values.values())
    if len(counts) != 2:
        return []
    (_, most), (other, few) = counts.most_common()
    return [rank for rank, value in values.items() if value == other] if few == 1 and most >= _ALIKE_MIN else []


def _odd_in_loops(tapes: Iterable[Tape]) -> Iterable[int]:
    """Yield ranks that have ended a pass through a loader that the others have not, or have not ended it as they have.

    One rank whose pass is over, against others that have drawn more; or one that has drawn more than all others had.
    """
    by_loop: dict[Hashable, dict[int, tuple[int, bool]]] = {}
    for tape in tapes:
        for each in tape.drawn:
            by_loop.setdefault((each.site, each.passes), {})[tape.rank] = each.batches, each.ended
    for ranks in by_loop.values():
        ended = {rank: drawn for rank, (drawn, over) in ranks.items() if over}
        for rank, drawn in ended.items():
            more = sum(batches > drawn for batches, _ in ranks.values())
            if more >= _ALIKE_MIN and list(ended.values()).count(drawn) == 1:
                yield rank
        if len(ended) >= _ALIKE_MIN and len(set(ended.values())) == 1:
            most = next(iter(ended.values()))
            yield from (rank for rank, (batches, _) in ranks.items() if batches > most)
