"""Shows how far each process group has come, and who is behind in it: the frontier, group by group.

The groups in which somebody waits or is behind come first: of thousands of groups a person reads ten.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ncclwatch_server.evidence.rank_labels import GroupName
from ncclwatch_server.state.group_index import Topology
from ncclwatch_server.state.picture import Picture

BEHIND_MAX = 64  # ranks named of one group
_NOBODY = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFrontier:
    """One group: how many operations its members have issued and completed."""

    key: str  # 64 bits, hexadecimal
    name: str  # "" as long as no full view has told it; with its lowest rank where another group has the same
    size: int  # members that report
    issued: int  # by the member that is furthest
    issued_least: int
    completed_least: int
    waiting: int  # members with an operation under way
    oldest_s: float  # of these operations
    behind: tuple[int, ...]  # some of the members that have issued least, where not all have issued equally much
    behind_count: int
    sample: int  # one of its members


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The groups of a job, the most telling first."""

    groups: tuple[GroupFrontier, ...]
    total: int
    apart: int  # groups whose members have not issued equally much


def frontier(picture: Picture, names: Mapping[int, GroupName], limit: int) -> Frontier:
    """Return the frontier of at most so many groups."""
    rows = picture.groups.copy()  # they change while this reads
    known = picture.topology
    order = known if known is not None and known.fits(rows) else Topology.of(rows)
    if not order.groups:
        return Frontier(groups=(), total=0, apart=0)
    sorted_rows, starts = rows[order.order], order.starts[:-1]
    issued = sorted_rows["enqueued"]
    most, least = np.maximum.reduceat(issued, starts), np.minimum.reduceat(issued, starts)
    done = np.minimum.reduceat(issued - np.minimum(issued, sorted_rows["unfinished"]), starts)
    pending_s = sorted_rows["pending_age_s"]
    oldest_s = np.maximum.reduceat(pending_s, starts)
    waiting = np.add.reduceat(pending_s > 0, starts, dtype=np.int64)
    sizes = np.diff(order.starts)
    apart = most != least
    shown = np.lexsort((-sizes, -oldest_s, ~apart))[:limit].tolist()
    names_told, times = np.unique(order.names, return_counts=True)
    shared = set(names_told[times > 1].tolist())
    found = []
    for number in shown:
        key, mine = int(order.keys[number]), slice(int(order.starts[number]), int(order.starts[number + 1]))
        ranks = sorted_rows["rank"][mine]
        behind = ranks[issued[mine] == least[number]] if apart[number] else _NOBODY
        name = str(names[key]) if key in names else ""
        found.append(
            GroupFrontier(
                key=f"{key:016x}",
                name=f"{name} from rank {ranks.min()}" if name and int(order.names[number]) in shared else name,
                size=int(sizes[number]),
                issued=int(most[number]),
                issued_least=int(least[number]),
                completed_least=int(done[number]),
                waiting=int(waiting[number]),
                oldest_s=round(float(oldest_s[number]), 1),
                behind=tuple(np.sort(behind)[:BEHIND_MAX].tolist()),
                behind_count=len(behind),
                sample=int(ranks[0]),
            )
        )
    return Frontier(groups=tuple(found), total=order.groups, apart=int(apart.sum()))
