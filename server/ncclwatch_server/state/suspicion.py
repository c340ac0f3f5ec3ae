"""Names what deserves a look in a job."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What deserves a look. Empty in a healthy job."""

    waiting: tuple[int, ...] = ()  # in a wait that only peers can end, and still
    ended: tuple[int, ...] = ()  # while others are not
    silent: Mapping[int, float] = field(default_factory=dict)  # seconds since their node last spoke
    desynced: tuple[int, ...] = ()  # their histories differ, though nothing hangs
    uneven: tuple[int, ...] = ()  # they have unequal numbers of batches in one loop, though nothing hangs
    saving: tuple[int, ...] = ()  # they may be writing one file, or cannot write theirs
    sharing: tuple[int, ...] = ()  # on a device that another rank has, too, and may not
    noted: tuple[int, ...] = ()  # they have found something about themselves that may be wrong
    drifted: tuple[int, ...] = ()  # they were not set up alike
    longest_wait_s: float = 0.0
    unheard: frozenset[int] = frozenset()  # of which nothing came lately: quiet does not mean health

    def __bool__(self) -> bool:
        hinted = self.desynced or self.uneven or self.saving or self.sharing or self.noted or self.drifted
        return bool(self.waiting or self.ended or self.silent or hinted)
