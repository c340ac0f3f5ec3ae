"""Makes the acquaintance of process groups: who is in one, what its backends are, when it gives up."""

from collections.abc import Iterable

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ncclwatch.contract.ring.layout import NO_GROUP, Flag
from ncclwatch.rank import torch_versions
from ncclwatch.rank.operations import Group
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.where.handlers import quietly, raised_by_handler

_HOST_BACKENDS = ("gloo", "mpi")  # wait() blocks the host until the work is done; with any other it may not


def group_of(recorder: Recorder, pg: "c10d.ProcessGroup", site: int = 0) -> Group:
    """Return what is known of a process group, making its acquaintance at first sight, or where it is made."""
    name = pg.group_name
    known = recorder.groups.get(name)
    if known is not None:
        return known
    if not name:
        return _nameless(recorder, pg, site)
    ranks = c10d._world.pg_group_ranks.get(pg)
    members = sorted(ranks, key=ranks.__getitem__) if ranks else list(range(pg.size()))
    return _add_group(recorder, pg, members, 0, site)


def _nameless(recorder: Recorder, pg: "c10d.ProcessGroup", site: int) -> Group:
    """Return what is known of a group that torch gives no name and keeps no list of: those of _dist2 are so.

    Each has a row of its own as long as the program has its object.
    """
    known = recorder.nameless.get(pg)
    if known is None:
        size = pg.size()
        everybody = not dist.is_initialized() or size == dist.get_world_size()
        known = recorder.nameless[pg] = _add_group(recorder, pg, list(range(size)) if everybody else [], 0, site)
    return known


def _add_group(recorder: Recorder, pg: "c10d.ProcessGroup", members: list[int], enqueued: int, site: int = 0) -> Group:
    group = recorder.add_group(pg.group_name, pg.group_desc or "", members, enqueued, site)
    backends = _backends(pg)
    group.host_waits = backends.get("cpu", "gloo") in _HOST_BACKENDS
    # Only works of the CPU may be held and asked: those of a device keep its memory, and may wait for it.
    group.by_account = not backends or any(
        device != "cpu" and name not in _HOST_BACKENDS for device, name in backends.items()
    )
    group.on_device = backends == {"cuda": "nccl"}
    asynchronous = not group.host_waits or any(name not in _HOST_BACKENDS for name in backends.values())
    recorder.flag(
        group,
        (Flag.ASYNC if asynchronous else 0) | (Flag.BLIND if group.by_account else 0) | (Flag.LATE if enqueued else 0),
    )
    _note_timeout(recorder, group, pg)
    return group


def _note_timeout(recorder: Recorder, group: Group, pg: "c10d.ProcessGroup") -> None:
    """Record after how long a group's operations are given up, of which the job ends."""
    with quietly:  # a backend without options; the timeout stays unknown
        limits = [pg._get_backend(device).options._timeout for device in pg._device_types]
        if limits and group.number != NO_GROUP:
            recorder.ring.limit_group(group.number, int(min(limits).total_seconds() * 1000))


def _backends(pg: "c10d.ProcessGroup") -> dict[str, str]:
    """Return the name of a group's backend by device type; {} if torch does not tell."""
    config = str(c10d._world.pg_backend_config.get(pg, ""))
    pairs = (part.split(":", 1) for part in config.split(",") if ":" in part)
    return dict(pairs)


def known_groups(recorder: Recorder, *, in_use: bool) -> Iterable[str]:
    """Register the groups that exist. `in_use`: they may have run collectives before anybody recorded them."""
    for pg in list(c10d._world.pg_map):
        name = pg.group_name
        if name not in recorder.groups:
            ranks = c10d._world.pg_group_ranks.get(pg, {})
            members = sorted(ranks, key=ranks.__getitem__)
            _add_group(recorder, pg, members, _seen_before(name) if in_use else 0)
        yield name


def _seen_before(name: str) -> int:
    """Return how many collectives a group ran before attach(), by torch's own flight recorder."""
    try:
        entries = torch_versions.flight_recorder_entries()
        return max((e["collective_seq_id"] for e in entries if e["process_group"][0] == name), default=0)
    except Exception as error:  # absent in this build, or another layout
        if raised_by_handler(error):
            raise
        return 0
