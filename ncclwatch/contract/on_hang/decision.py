"""Decides what is done about a hang, by a policy and by what was done about the ones before. Pure.

A restart cures what has broken, and not what is wrong: a job that hangs once more in the same way after a restart
would do so every time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ncclwatch.contract.model.verdict import Cause, Certainty
from ncclwatch.contract.on_hang.policy import Action, Policy

STACKS_S = 2.0  # an end waits so long for stacks
DECIDED_S = 3.0  # and so long for the news of ranks that may tell which of several is the culprit
CRASH_S = 5.0  # a crashed job is left to its launcher for so long: it ends it, or starts it again


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A critical verdict, as far as it decides what is done."""

    cause: str
    certainty: str
    ranks: frozenset[int] = frozenset()  # its culprits
    places: frozenset[str] = frozenset()  # "file:line" of each culprit, where that is known
    attempt: int = 0  # of its job; 0: the first
    saved: bool = False  # whether a rank had recorded a save since its attempt began
    traced: bool = False  # whether a debugger holds a culprit

    def is_like(self, other: "Hang") -> bool:
        """Say whether this is the same hang as another one: the same cause, by the same ranks or at the same line."""
        same = self.ranks & other.ranks or self.places & other.places
        return self.cause == other.cause and bool(same or not (self.ranks or self.places))


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done, and why, in words that follow the name of the action."""

    action: Action
    reason: str
    settled: bool = True  # False: nothing is done about it, by no policy, or not yet


_FINAL_FIRST = (Action.ABORT, Action.RESTART_ELSEWHERE, Action.RESTART)


def urgency(decision: Decision) -> int:
    """Return the place of a decision among those about several hangs of one job: first what no restart here cures."""
    return _FINAL_FIRST.index(decision.action) if decision.action in _FINAL_FIRST else len(_FINAL_FIRST)


def settled_s(cause: str, *, one_of: bool, seen: bool) -> float:
    """Return for how long after its first report a hang may still become better known. `seen`: with stacks."""
    if cause == Cause.RANK_CRASHED.value:
        return CRASH_S
    return DECIDED_S if one_of else 0.0 if seen else STACKS_S


def decide(
    policy: Policy, hang: Hang, stands_s: float, before: Sequence[Hang] = (), restarts: int | None = None
) -> Decision:
    """Return what is done about a hang that has stood for so long.

    `before`: the hangs for which this job has been started again, the oldest first. `restarts`: how often it was, where
    one attempt may have had several hangs.
    """
    action = policy.action(hang.cause, hang.certainty)
    if hang.certainty not in (Certainty.PROVEN.value, Certainty.STALLED.value):
        return Decision(Action.REPORT, f"ranks are late ({hang.certainty})", settled=False)
    if hang.traced and action not in (Action.REPORT, Action.CAPTURE):
        return Decision(Action.REPORT, "a debugger holds a rank, so somebody is looking at it", settled=False)
    if not action.ends:
        return Decision(action, f"the policy says so for {hang.cause}, {hang.certainty}")
    left_s = policy.patience_s(hang.cause, hang.certainty) - stands_s
    if left_s > 0:
        return Decision(Action.REPORT, f"it may still end by itself, for {left_s:.0f} s more", settled=False)
    if not action.restarts:
        return Decision(action, f"the policy says so for {hang.cause}")
    again = sum(hang.is_like(each) for each in before)
    if again:
        return Decision(Action.ABORT, f"it hangs as it did before a restart ({hang.cause}), so another would not help")
    saved_in = {each.attempt for each in before if each.saved}
    unsaved = len({each.attempt for each in before} - saved_in - {0})  # attempts that were restarts themselves
    saves = any(each.saved for each in before)  # else nobody knows whether it saves in a way that is recorded
    if before and saves and not hang.saved and unsaved >= policy.restarts_unsaved_max:
        return Decision(
            Action.ABORT,
            "it has saved nothing since it was started again, so it would begin at the same place once more",
        )
    restarts = len(before) if restarts is None else restarts
    if restarts >= policy.restarts_max:
        times = "once" if restarts == 1 else f"{restarts} times"
        return Decision(Action.ABORT, f"it has been restarted {times}, which is as often as the policy allows")
    return Decision(action, f"the policy says so for {hang.cause}")
