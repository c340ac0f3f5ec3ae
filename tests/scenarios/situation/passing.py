"""Lets time pass in a situation: who stands still goes on standing still, and who is at work stays at work."""

from dataclasses import replace

from ncclwatch.contract.model.rank import GroupView, OpView, ProcessView, RankView, SaveView, ThreadView
from tests.scenarios.situation.state import State

PULSE_LOST_S = 0.5  # a pulse that is older does not run


def pass_time(state: State, seconds: float) -> None:
    """Make everything older that does not go on."""
    for rank, view in state.ranks.items():
        state.ranks[rank] = _later(view, seconds)
    state.silent = {rank: silent_s + seconds for rank, silent_s in state.silent.items()}
    state.contacts = {rank: (contact, lasted_s + seconds) for rank, (contact, lasted_s) in state.contacts.items()}


def _later(view: RankView, seconds: float) -> RankView:
    return replace(
        view,
        pulse_age_s=view.pulse_age_s + (seconds if view.pulse_age_s > PULSE_LOST_S else 0.0),
        process=_process(view.process, seconds),
        threads=tuple(_thread(thread, seconds) for thread in view.threads),
        groups=tuple(_group(group, seconds) for group in view.groups),
        history=tuple(_operation(op, seconds) for op in view.history),
        saves=tuple(_save(save, seconds) for save in view.saves),
        ending=replace(view.ending, age_s=view.ending.age_s + seconds) if view.ending is not None else None,
        last_exception_s=view.last_exception_s + seconds,
        phase_s=view.phase_s + seconds,
    )


def _longer(still_s: float, seconds: float) -> float:
    """Return for how long something has not moved that did not move for so long before."""
    return still_s + seconds if still_s > 0 else 0.0


def _process(process: ProcessView, seconds: float) -> ProcessView:
    return replace(
        process, cpu_still_s=_longer(process.cpu_still_s, seconds), io_still_s=_longer(process.io_still_s, seconds)
    )


def _thread(thread: ThreadView, seconds: float) -> ThreadView:
    wait = thread.wait
    return replace(
        thread,
        wait=replace(wait, age_s=wait.age_s + seconds) if wait is not None else None,
        same_s=_longer(thread.same_s, seconds),
        cpu_still_s=_longer(thread.cpu_still_s, seconds),
    )


def _operation(op: OpView, seconds: float) -> OpView:
    return replace(op, age_s=op.age_s + seconds)


def _group(group: GroupView, seconds: float) -> GroupView:
    return replace(group, pending=_operation(group.pending, seconds) if group.pending is not None else None)


def _save(save: SaveView, seconds: float) -> SaveView:
    ended_s = save.ended_s + seconds if save.ended_s is not None else None
    return replace(save, began_s=save.began_s + seconds, ended_s=ended_s, still_s=_longer(save.still_s, seconds))
