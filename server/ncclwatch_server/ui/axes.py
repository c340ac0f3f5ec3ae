"""Orders the ranks of a job for its picture: by host, by the dimensions in which it is parallel, by an incident.

A dimension is a set of process groups of one size that share no rank and hold most ranks of the job, such as the
groups of tensor parallelism. It is called as torch or the user calls its groups, else by what its groups look like.
Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract.words.printable import one_line
from ncclwatch_server.evidence.rank_labels import GroupName
from ncclwatch_server.http.job_views import nodes_of
from ncclwatch_server.jobs.read_model import JobSight
from ncclwatch_server.state.group_index import Topology
from ncclwatch_server.state.picture import Picture

AXES_MAX = 12
LABEL_MAX = 80
_UNNAMED = ("", "undefined", "default_pg")

Ranks = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Ranks that lie together, such as those of one host."""

    label: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One order of all ranks."""

    name: str
    order: tuple[int, ...]  # every rank once
    parts: tuple[Part, ...]  # in this order; their counts add up to the number of ranks


def axes_of(sight: JobSight) -> tuple[Axis, ...]:
    """Return the orders in which a job can be looked at, besides that by rank."""
    found = [_by_incident(sight), _by_host(sight), *_by_dimensions(sight.picture, sight.names, sight.world_size)]
    return tuple(axis for axis in found if axis is not None)[:AXES_MAX]


def _axis(name: str, world: int, parts: Iterable[tuple[str, Ranks]], rest: str) -> Axis:
    """Return an axis of these parts; ranks that are in none come last."""
    found = [(label, ranks) for label, ranks in parts if len(ranks)]
    left = np.ones(world, np.bool_)
    for _, ranks in found:
        left[ranks] = False
    if left.any():
        found.append((rest, np.flatnonzero(left)))
    order = np.concatenate([ranks for _, ranks in found])
    labels = tuple(Part(label=one_line(label[:LABEL_MAX]), count=len(ranks)) for label, ranks in found)
    return Axis(name=one_line(name[:LABEL_MAX]), order=tuple(order.tolist()), parts=labels)


def _by_incident(sight: JobSight) -> Axis | None:
    """Return the ranks of the worst open incident first: the culprits, then those that wait for them."""
    if not sight.incidents:
        return None
    verdict, taken = sight.incidents[0].verdict, np.zeros(sight.world_size, np.bool_)
    parts = []
    for label, ranks in (("culprit", [c.rank for c in verdict.culprits]), ("waits for it", verdict.victims)):
        mine = np.unique(np.array([rank for rank in ranks if 0 <= rank < sight.world_size], np.int64))
        parts.append((label, mine[~taken[mine]]))
        taken[mine] = True
    return _axis("incident first", sight.world_size, parts, "others")


def _by_host(sight: JobSight) -> Axis | None:
    hosts: dict[str, list[int]] = {}
    for node in nodes_of(sight):
        hosts.setdefault(node.host, []).extend(node.ranks)
    if len(hosts) < 2:
        return None
    parts = sorted(((host, np.array(sorted(ranks), np.int64)) for host, ranks in hosts.items()), key=_first)
    return _axis("host", sight.world_size, parts, "no host yet")


def _first(part: tuple[str, Ranks]) -> tuple[int, str]:
    return (int(part[1][0]) if len(part[1]) else -1, part[0])


@dataclass(slots=True, kw_only=True)
class _Dimension:
    """Groups that look alike and share no rank."""

    taken: NDArray[np.bool_]  # by rank
    groups: list[Ranks]
    names: Counter[str]


def _by_dimensions(picture: Picture, names: Mapping[int, GroupName], world: int) -> Iterable[Axis]:
    alike: dict[tuple[int, int], list[_Dimension]] = {}  # by size and step; two dimensions may look the same
    for key, ranks in _groups(picture):
        if not 1 < len(ranks) < world:
            continue
        beside = alike.setdefault((_step(ranks), len(ranks)), [])
        mine = next((dimension for dimension in beside if not dimension.taken[ranks].any()), None)
        if mine is None:
            if len(beside) >= AXES_MAX:
                continue
            mine = _Dimension(taken=np.zeros(world, np.bool_), groups=[], names=Counter())
            beside.append(mine)
        mine.taken[ranks] = True
        mine.groups.append(ranks)
        mine.names.update(filter(None, [_called(names.get(key))]))
    shown: set[tuple[tuple[int, ...], ...]] = set()
    for (step, size), dimensions in sorted(alike.items(), key=lambda item: (item[0][0] == 0, item[0])):
        for dimension in dimensions:
            groups = sorted(dimension.groups, key=lambda ranks: int(ranks[0]))
            members = tuple(tuple(ranks.tolist()) for ranks in groups)
            if 2 * int(dimension.taken.sum()) <= world or members in shown:
                continue
            shown.add(members)
            called = dimension.names.most_common(1)[0][0] if dimension.names else ""
            apart = "next to each other" if step == 1 else f"{step} apart" if step else "as they come"
            parts = [(f"{called or 'group'} {number}", ranks) for number, ranks in enumerate(groups)]
            yield _axis(called or f"groups of {size}, {apart}", world, parts, "in no such group")


def _groups(picture: Picture) -> Iterable[tuple[int, Ranks]]:
    rows = picture.groups.copy()  # they change while this reads
    known = picture.topology
    order = known if known is not None and known.fits(rows) else Topology.of(rows)
    for number in range(order.groups):
        mine = order.order[order.starts[number] : order.starts[number + 1]]
        yield int(order.keys[number]), np.unique(rows["rank"][mine]).astype(np.int64)


def _step(ranks: Ranks) -> int:
    """Return by how much each rank is above the one before, 0 if that differs."""
    steps = np.diff(ranks)
    return int(steps[0]) if (steps == steps[0]).all() else 0


def _called(name: GroupName | None) -> str:
    """Return what a group's dimension is called: "mesh_tp" is "tp"."""
    if name is None or name.desc in _UNNAMED:
        return ""
    return name.desc.removeprefix("mesh_")
