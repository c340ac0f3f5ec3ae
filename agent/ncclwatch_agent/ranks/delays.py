"""Counts what kept a rank from its work, and how far it had come in step with the others, for each digest.

Blocked time is read at boundaries that all members of a group cut at the same operations (`ring.MeterRow`), so that a
server can compare ranks without any clock of theirs. The rest are running totals, of the rank itself, of its main
thread, of its control group and of its machine.
"""

from collections.abc import Sequence

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import ProcessState
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.rows import GroupRow, MeterRow
from ncclwatch_agent.process.quota import CpuQuota, StolenTime
from ncclwatch_agent.ranks.waits import key_of

WINDOW_S = 1.5  # from one boundary to the next, at least: the server looks once a second
CHOOSE_S = 10.0  # between two choices of the group by which a rank is cut
MOVES_MIN = 3  # looks within that time at which it had moved: a group used less often makes too long windows
_MASK = 0xFFFFFFFF
_SPENT = (Word.DATA_NS, Word.GC_NS, Word.SAVE_NS, Word.PEERS_WAITED_NS)
Values = tuple[int, ...]


class Delays:
    """The values of `digests.RANK_FIELDS` from pace_group on, of one rank. Time is an argument."""

    def __init__(self, ring: Ring, pid: int) -> None:
        self._ring = ring
        self._quota = CpuQuota(pid)
        self._stolen = StolenTime.of_this_machine()
        self._queued_ns = self._ran_ns = 0
        self._seen_ns = 0
        self._state_ms = dict.fromkeys((ProcessState.STOPPED, ProcessState.DISK_WAIT), 0.0)
        self._chosen = -1  # number of the group
        self._chosen_at_ns = 0
        self._moves: dict[int, tuple[int, int]] = {}  # group -> enqueued, looks at which it had moved
        self._enqueued = (0, 0)  # of the chosen group, and when
        self._level = 0

    def observe(self, now_ns: int, state: ProcessState, scheduled: tuple[int, int]) -> None:
        """Look once: in which state the process is now, and how long its main thread has had a core and waited for one.

        Both are totals in ns; (0, 0): nobody knows.
        """
        if self._seen_ns and state in self._state_ms:
            self._state_ms[state] += (now_ns - self._seen_ns) / 1e6
        self._seen_ns = now_ns
        if scheduled != (0, 0):
            self._ran_ns, self._queued_ns = scheduled
        self._quota.look(now_ns)

    def row(self, words: Values, groups: Sequence[GroupRow], now_ns: int, gpu_slow: int) -> Values:
        """Return the values of a digest."""
        meter = self._meter(groups, now_ns)
        key = key_of(groups[self._chosen]) if meter is not None else 0
        boundary, time_ms, waited_ns = meter or (0, 0, 0)
        return (
            key, waited_ns, boundary, time_ms,
            *(words[word] // 1_000_000 & _MASK for word in _SPENT),
            self._queued_ns // 1_000_000 & _MASK,
            self._ran_ns // 1_000_000 & _MASK,
            self._quota.throttled_ms & _MASK,
            self._stolen.ms(now_ns) & _MASK,
            *(int(ms) & _MASK for ms in self._state_ms.values()),
            gpu_slow,
        )  # fmt: skip

    def _meter(self, groups: Sequence[GroupRow], now_ns: int) -> MeterRow | None:
        if now_ns - self._chosen_at_ns >= CHOOSE_S * 1e9:
            self._choose(groups, now_ns)
        self._note_moves(groups)
        if not 0 <= self._chosen < len(groups):
            return None
        self._adapt(groups[self._chosen], now_ns)
        return self._ring.meter(self._chosen, self._level)

    def _note_moves(self, groups: Sequence[GroupRow]) -> None:
        for row in groups[: config.METERS_MAX]:
            before, moves = self._moves.get(row.number, (0, 0))
            self._moves[row.number] = row.enqueued, moves + (row.enqueued != before)

    def _choose(self, groups: Sequence[GroupRow], now_ns: int) -> None:
        """Take the widest group that is used often; all of its members come to the same choice."""
        often = (number for number, (_, moves) in self._moves.items() if moves >= MOVES_MIN and number < len(groups))
        # Of a group whose members nobody knows it is not known with whom a rank could be compared.
        known = (number for number in often if groups[number].roster.digest)
        used = [number for number in known if self._ring.meter(number, 0) is not None]
        chosen = max(used, key=lambda number: (groups[number].roster.size, -number), default=self._chosen)
        if chosen != self._chosen:
            self._chosen, self._enqueued = chosen, (0, 0)
        # Until there is a first choice it is tried anew with each look.
        self._chosen_at_ns = now_ns if chosen >= 0 else 0
        if chosen >= 0:
            self._moves = {number: (enqueued, 0) for number, (enqueued, _) in self._moves.items()}

    def _adapt(self, row: GroupRow, now_ns: int) -> None:
        """Choose how far boundaries are apart, by how many operations the group has in a window."""
        enqueued, at_ns = self._enqueued
        if not at_ns:
            self._enqueued = row.enqueued, now_ns
            return
        if now_ns - at_ns < WINDOW_S * 1e9:
            return
        done = (row.enqueued - enqueued) * WINDOW_S * 1e9 / (now_ns - at_ns)
        self._level = max(0, int(done)).bit_length()
        self._enqueued = row.enqueued, now_ns

    def close(self) -> None:
        """Give all descriptors back."""
        self._quota.close()
