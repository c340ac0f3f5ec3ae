"""Finds ranks that neither train nor end when the others have ended well: nobody waits for them in any operation.

No timeout of a backend ends such a job. What they stand in may be meant (a service that one rank becomes), so patience
is long, and it needs that every rank which is left stands still.
"""

from ncclwatch.contract.model.rank import ProcessState, RankView
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, main_thread
from ncclwatch_server.judge.theory.ends.kinds import ended_s_ago, is_clean
from ncclwatch_server.judge.theory.roots import LingeringRoot, Stay
from ncclwatch_server.judge.theory.stillness import Trouble, still_s_of, stillness
from ncclwatch_server.judge.theory.waits.rank_standing import FROZEN_STATES, GONE_STATES

LINGERS_S = (
    20.0  # of stillness, and since the last of the others has ended, where the program is over or asks for a file
)
LINGERS_IN_CALL_S = 60.0  # the same anywhere in the program, or in a call that ends by itself or that another answers
_MAY_GO_ON = frozenset(
    "clock_nanosleep nanosleep pause recvfrom recvmsg accept accept4 poll ppoll select pselect6 epoll_wait epoll_pwait "
    "connect wait4 waitid fsync fdatasync".split()
)
_SHUTDOWN = "_shutdown "


def find_lingering(case: Case) -> LingeringRoot | None:
    """Return the ranks that are left and stand still, of a job that is all known and in which nobody waits for one."""
    if case.told or case.blocked:
        return None
    views = case.views
    known = len(views) == case.snapshot.world_size and not case.snapshot.silent
    ended = tuple(rank for rank, view in views.items() if _has_ended(view))
    left = {rank: view for rank, view in views.items() if rank not in ended}
    if not known or not ended or not left:
        return None
    if not all(view.ending is not None and is_clean(view.ending) for view in views.values() if view.ending is not None):
        return None
    if any(view.process.state in FROZEN_STATES for view in left.values()):
        return None
    ended_s = min(ended_s_ago(views[rank]) for rank in ended)
    still = {rank: min(still_s_of(view), ended_s) for rank, view in left.items()}
    stays = {rank: _stay_of(case, view) for rank, view in left.items()}
    if any(still[rank] < _patience_s(view, stays[rank]) for rank, view in left.items()):
        return None
    worst = min(stays.values(), key=lambda stay: tuple(Stay).index(stay))
    ranks = tuple(sorted(rank for rank, stay in stays.items() if stay is worst))
    return LingeringRoot(
        hangs=Certainty.STALLED,
        ranks=ranks,
        onset_s=min(still.values()),
        still_s=min(still.values()),
        ended=ended,
        stay=worst,
        beside=tuple(sorted(rank for rank in left if rank not in ranks)),
    )


def _has_ended(view: RankView) -> bool:
    if view.ending is None:
        return False
    return view.process.state in (*GONE_STATES, ProcessState.UNKNOWN)


def _stay_of(case: Case, view: RankView) -> Stay:
    thread = main_thread(view)
    if view.ending is not None:
        return Stay.EXIT_HANDLERS
    if thread is not None and thread.leaf.startswith(_SHUTDOWN) and "threading.py" in thread.leaf:
        return Stay.THREADS
    found = stillness(case, view)
    return Stay.FILES if found is not None and found.trouble is Trouble.FILES else Stay.PROGRAM


def _patience_s(view: RankView, stay: Stay) -> float:
    thread = main_thread(view)
    call = thread.in_kernel.partition(" ")[0] if thread is not None else ""
    over = stay in (Stay.EXIT_HANDLERS, Stay.THREADS) and call not in _MAY_GO_ON
    return LINGERS_S if over or stay is Stay.FILES else LINGERS_IN_CALL_S
