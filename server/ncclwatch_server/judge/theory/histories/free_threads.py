"""Which threads of a rank may let go of what another thread of it waits in."""

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import RankView, ThreadView, WaitKind

IDLE_S_MIN = 3.0  # a thread outside all operations that has stood still so long will not release anything
IDLE_IN_CALL_S_MIN = 60.0  # the same of one that has issued operations, in a call that storage, a peer or a clock ends


def is_idle(thread: ThreadView) -> bool:
    """Say whether a thread that is in no operation has stood still for long enough.

    A thread of the autograd engine that issues gradient buckets has no Python frame when it is idle.
    """
    least_s = IDLE_IN_CALL_S_MIN if may_come_back(thread) else IDLE_S_MIN
    same = thread.same_s >= least_s or not (thread.leaf or thread.main)
    return same and thread.cpu_still_s >= least_s


def may_come_back(thread: ThreadView) -> bool:
    """Say whether a thread that has issued operations is in a system call, other than the wait for another thread."""
    return thread.alive and thread.issued > 0 and bool(thread.in_kernel) and "futex" not in thread.in_kernel


def may_release(view: RankView, thread: ThreadView, unfinished: frozenset[str] | None) -> bool:
    """Say whether a thread may do what somebody waits for, as far as is known of what it has issued.

    A heartbeat in a group of its own goes on while all other groups hang.
    """
    met = {op.group for op in view.history if op.thread == thread.tid}
    return thread.main or not met or unfinished is None or not met.isdisjoint(unfinished)


def unfinished_groups(snapshot: JobSnapshot) -> frozenset[str] | None:
    """Return the groups in which somebody waits, or has issued what is not through; None where a key is waited for."""
    views = snapshot.ranks.values()
    waits = [thread.wait for view in views for thread in view.threads if thread.wait is not None]
    if any(wait.kind is WaitKind.STORE for wait in waits):  # any thread may set it
        return None
    pending = {group.name for view in views for group in view.groups if group.pending is not None}
    return frozenset(pending.union(wait.group for wait in waits))
