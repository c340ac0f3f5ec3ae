"""Sends what the nodes of a simulated job send: announcements and digests as bytes of the wire, views on request."""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract import config, digests, wire
from ncclwatch.contract.groups import group_key, name_key
from ncclwatch.contract.model.rank import Op, ProcessState, RankView, WaitKind
from ncclwatch.contract.ring.members import digest_of, digest_of_all
from ncclwatch_server.simulation.job.faults import FaultKind
from ncclwatch_server.simulation.job.layout import WORLD_NAME, Axis
from ncclwatch_server.simulation.job.step_times import Told
from ncclwatch_server.simulation.run import Standstill
from ncclwatch_server.simulation.sights import view, waits_in
from ncclwatch_server.state.digest_rows import GROUP_DTYPE, RANK_DTYPE

_STATE = {state: code for code, state in enumerate(digests.PROCESS_STATES)}
_KIND = {kind: code for code, kind in enumerate(digests.WAIT_KINDS)}


class Fleet:
    """The nodes of one simulated job at a standstill, or on its way through it."""

    def __init__(self, still: Standstill) -> None:
        self.still = still
        self.delays: Told | None = None  # how its ranks were delayed; None: nothing
        self._place = np.array(still.places, np.int64)
        self._course_of = np.array(still.course_of, np.int64)

    @property
    def nodes(self) -> int:
        """How many machines the job has."""
        return -(-self.still.world_size // self.still.layout.node)

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a machine."""
        size = self.still.layout.node
        return range(node * size, min(self.still.world_size, (node + 1) * size))

    def announce(self, node: int, job: str) -> wire.Announce:
        """Return what a node's agent says of the job."""
        return wire.Announce(
            index=0, job=job, instance="simulated", attempt=0, world_size=self.still.world_size,
            ranks=tuple(self.ranks_of(node)), terminal=False,
        )  # fmt: skip

    def digest(self, node: int, hang_s: float) -> bytes:
        """Return a node's digest, so long after everything came to stand."""
        mine, theirs = self.rows(hang_s, self.ranks_of(node))
        head = digests.DIGEST_HEAD.pack(digests.DIGEST_MAGIC, config.PROTOCOL, 0, 0, len(mine), len(theirs))
        return head + mine.tobytes() + theirs.tobytes()

    def views(self, ranks: Iterable[int], hang_s: float) -> tuple[RankView, ...]:
        """Return the full views of some ranks."""
        return tuple(view(self.still, rank, hang_s) for rank in ranks)

    def rows(self, hang_s: float, some: range | None = None) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Return the digest rows of all ranks, or of some neighbours, and of their groups, rank by rank."""
        own, each = some or range(self.still.world_size), len(self.still.layout.axes)
        ranks = self._ranks[own.start : own.stop].copy()
        groups = self._groups[own.start * each : own.stop * each].copy()
        waits = ranks["wait_kind"] >= 0
        ranks["wait_age_s"][waits] += hang_s
        pending = groups["pending_age_s"] > 0
        groups["pending_age_s"][pending] += hang_s
        frozen = ranks["state"] == _STATE[ProcessState.STOPPED]
        quiet = frozen | (ranks["ended"] != 0)
        ranks["pulse_age_s"][quiet] = (hang_s + self._older_s[own.start : own.stop])[quiet]
        if self.delays is not None:
            self.delays.put(ranks, own.start, group_key(WORLD_NAME, digest_of_all(self.still.world_size)))
        return ranks, groups

    @cached_property
    def _blocked(self) -> NDArray[np.bool_]:
        found = np.zeros(self.still.world_size, np.bool_)
        found[list(self.still.blocked)] = True
        return found

    @cached_property
    def _older_s(self) -> NDArray[np.float64]:
        stopped = np.array(self.still.stopped_at, np.float64)
        return 2.0 * (1.0 - stopped / max(1.0, float(stopped.max(initial=0.0))))

    @cached_property
    def _ranks(self) -> NDArray[np.void]:
        """All rank rows, with the ages that the ranks had at the standstill."""
        still, rows = self.still, np.zeros(self.still.world_size, RANK_DTYPE)
        rows["rank"] = np.arange(still.world_size)
        rows["state"] = _STATE[ProcessState.SLEEPING]
        rows["initialised"] = 1
        rows["pulse_age_s"] = 0.2
        rows["waits_for"] = rows["wait_kind"] = -1
        rows["issued"] = self._place + self._blocked
        rows["completed"] = sum(self._counted(axis) for axis in still.layout.axes)
        rows["wait_age_s"] = np.where(self._blocked, self._older_s, 0.0)
        rows["steps"] = self._counted(Axis.WORLD)
        for rank in still.blocked:
            step = waits_in(still, rank)
            if step is not None and step.op is Op.RECV:
                rows["waits_for"][rank] = still.layout.neighbour(rank, step.towards)
                rows["wait_kind"][rank] = _KIND[WaitKind.RECV]
                rows["waits_in"][rank] = self._keys[step.axis][0][rank]
            elif step is not None:
                rows["wait_kind"][rank] = _KIND[WaitKind.COLLECTIVE]
        for axis, (keys, _) in self._keys.items():
            rows["waits_in"][self._waits_along(axis)] = keys[self._waits_along(axis)]
        for rank, fault in still.halted.items():
            rows["ended"][rank] = fault.kind is FaultKind.KILLED
            states = {FaultKind.KILLED: ProcessState.GONE, FaultKind.STOPPED: ProcessState.STOPPED}
            rows["state"][rank] = _STATE[states.get(fault.kind, ProcessState.SLEEPING)]
        return rows

    @cached_property
    def _groups(self) -> NDArray[np.void]:
        axes = self.still.layout.axes
        rows = np.zeros((self.still.world_size, len(axes)), GROUP_DTYPE)
        for column, axis in enumerate(axes):
            inside = self._waits_along(axis)
            rows["rank"][:, column] = np.arange(self.still.world_size)
            rows["group"][:, column] = self._keys[axis][0]
            rows["name"][:, column] = self._keys[axis][1]
            rows["enqueued"][:, column] = self._counted(axis) + inside
            rows["unfinished"][:, column] = inside
            rows["prefix_hash"][:, column] = self._hashed(axis, inside)
            rows["pending_age_s"][:, column] = np.where(inside, np.maximum(self._older_s, 1e-3), 0.0)
        return rows.reshape(-1)

    @cached_property
    def _keys(self) -> dict[Axis, tuple[NDArray[np.uint64], NDArray[np.uint32]]]:
        """The key of each rank's group along each axis, and that of its name."""
        layout, found = self.still.layout, {}
        for axis in layout.axes:
            keys, names = np.zeros(self.still.world_size, np.uint64), np.zeros(self.still.world_size, np.uint32)
            for number, ranks in enumerate(layout.members[axis]):
                name = layout.name(axis, number)
                keys[list(ranks)], names[list(ranks)] = group_key(name, digest_of(ranks)), name_key(name)
            found[axis] = keys, names
        return found

    @cached_property
    def _axis_waited_in(self) -> NDArray[np.int64]:
        """For each rank the place of the axis it waits along, -1 if it waits in no collective."""
        axes = {axis: column for column, axis in enumerate(self.still.layout.axes)}
        found = np.full(self.still.world_size, -1, np.int64)
        for rank in self.still.blocked:
            step = waits_in(self.still, rank)
            if step is not None and not step.op.is_p2p:
                found[rank] = axes[step.axis]
        return found

    def _waits_along(self, axis: Axis) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = self._axis_waited_in == self.still.layout.axes.index(axis)
        return inside

    def _counted(self, axis: Axis) -> NDArray[np.int64]:
        found = np.zeros(self.still.world_size, np.int64)
        for number, course in enumerate(self.still.courses):
            mine = self._course_of == number
            found[mine] = course.counts[axis][self._place[mine]]
        return found

    def _hashed(self, axis: Axis, inside: NDArray[np.bool_]) -> NDArray[np.uint64]:
        found = np.zeros(self.still.world_size, np.uint64)
        for number, course in enumerate(self.still.courses):
            mine = self._course_of == number
            found[mine] = course.hashes[axis][self._place[mine] + inside[mine]]
        return found
