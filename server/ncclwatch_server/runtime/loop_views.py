"""Shows the loops of this server to who asks for its health."""

from dataclasses import dataclass

from ncclwatch.contract.machine.liveness import LoopLife


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopView:
    """How long ago a loop of the server went round last."""

    name: str
    age_s: float
    stands_still: bool
    vital: bool  # without it the server is no good, and ends
    restarts: int  # how often it ended and was begun anew


def view_of(life: LoopLife) -> LoopView:
    """Return how a loop is now."""
    return LoopView(
        name=life.name,
        age_s=round(life.age_s(), 3),
        stands_still=life.stands_still,
        vital=life.vital,
        restarts=life.restarts,
    )


def trouble_of(life: LoopLife) -> str:
    """Return the sentence for a vital loop that stands still, "" for any other."""
    if not (life.vital and life.stands_still):
        return ""
    return f"the loop {life.name!r} has not finished a round for {life.age_s():.0f} s"
