"""Finds a stage of a pipeline that has more to do than the others: they wait for it, and no machine is bad.

Ranks of one stage work alike and are compared with each other for stragglers. Here whole stages are compared: by the
time in which their ranks neither wait in collectives nor for a message.
"""

from dataclasses import dataclass

import numpy as np

from ncclwatch_server.stragglers.windows import Floats, Numbers, Window

MESSAGES_MIN = 0.02  # of the time: without waits for messages there is no pipeline
MORE_MIN = 0.10  # of the time that a stage works more than the median of the others
WINDOWS_MIN = 5  # in a row
STAGES_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage that works while the others wait for it."""

    ranks: tuple[int, ...]
    more: float  # share of the time


class Stages:
    """Which stage has been the busiest, and for how many windows."""

    def __init__(self) -> None:
        self._home = 0
        self._windows = 0

    def compare(self, window: Window, messages: Floats) -> Stage | None:
        """Add a window; `messages` is the share of its time that each of its ranks waits in sends and receives."""
        found = busiest(window, messages)
        if found is None:
            self._windows = 0
            return None
        home, more = found
        self._windows = self._windows + 1 if home == self._home else 1
        self._home = home
        if self._windows < WINDOWS_MIN:
            return None
        return Stage(ranks=tuple(window.rank[window.home == home].tolist()), more=more)


def busiest(window: Window, messages: Floats) -> tuple[int, float] | None:
    """Return (group, how much more of its time it works) of the stage that works most, None if none stands out."""
    if bool((window.home == window.home[0]).all()):
        return None
    homes, group = np.unique(window.home, return_inverse=True)
    if not 2 <= len(homes) <= STAGES_MAX or float(np.median(messages)) < MESSAGES_MIN:
        return None
    worked = 1.0 - window.blocked - np.minimum(messages, 1.0)
    by_stage = np.array([float(np.median(worked[group == number])) for number in range(len(homes))])
    first = int(np.argmax(by_stage))
    more = float(by_stage[first] - np.median(np.delete(by_stage, first)))
    if more < MORE_MIN or not _all_above(worked, group, first, by_stage):
        return None
    return int(homes[first]), more


def _all_above(worked: Floats, group: Numbers, first: int, by_stage: Floats) -> bool:
    """Whether most ranks of the stage, and not one of them alone, work more than the other stages do."""
    return float(np.mean(worked[group == first] > np.median(np.delete(by_stage, first)))) > 0.75
