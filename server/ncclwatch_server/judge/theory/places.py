"""Finds the line of the user's code at which a rank stands that is in no operation."""

from ncclwatch.contract.model.rank import CallSite, RankView
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch_server.judge.theory.case import Case, main_thread
from ncclwatch_server.judge.theory.pulse import is_lost
from ncclwatch_server.judge.theory.waits.rank_standing import FROZEN_STATES


def cannot_look(view: RankView) -> bool:
    """Say whether nobody inside a rank sees where it stands: only py-spy does."""
    return is_lost(view) or view.process.state in FROZEN_STATES


def is_over(view: RankView) -> bool:
    """Say whether the program of a rank is over, and its interpreter waits for other threads of it."""
    thread = main_thread(view)
    if thread is None or thread.doing is not None or thread.wait is not None or cannot_look(view):
        return False
    function, _, place = thread.leaf.partition(" ")
    return function == "_shutdown" and place.rsplit(":", 1)[0].endswith("/threading.py")


def place_of(case: Case, view: RankView) -> CallSite | None:
    """Return the user's line a rank stands at, by who saw it last: py-spy, the pulse, the wait, the last operation."""
    thread = main_thread(view)
    waits_at = thread.wait.site if thread is not None and thread.wait is not None else None
    doing = thread.doing if thread is not None else None
    if is_over(view):
        return None
    if cannot_look(view):
        return _in_stacks(case, view) or waits_at or doing or _newest_site(view)
    return doing or waits_at or _newest_site(view)


def _in_stacks(case: Case, view: RankView) -> CallSite | None:
    dump = case.snapshot.stacks.get(view.rank)
    for name, frames in dump.threads if dump is not None else ():
        if name == "MainThread":
            for frame in frames:
                if frame.line > 0 and is_users_by_path(frame.file):  # py-spy shows a frame it could not read as line 0
                    return CallSite(file=frame.file, line=frame.line, function=frame.function)
    return None


def _newest_site(view: RankView) -> CallSite | None:
    return view.history[-1].site if view.history else None
