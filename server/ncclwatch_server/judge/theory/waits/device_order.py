"""Finds in which operations a device holds up its rank, and where the host stands meanwhile.

With NCCL a call returns when it is enqueued. The host runs ahead of its device until it reads a value, or until
the launch queue is full, and what it is held up by is not where it stands: it is the oldest operation of the rank
that is not finished. Whatever the rank issued later has not begun; that follows from the order of one stream, and
between the streams of two groups it is only likely.

That a device has not finished says nothing about a hang: it may compute. What tells is whether another rank has not
issued the same operation.
"""

from ncclwatch.contract.model.rank import GroupView, Op, OpView, RankView, ThreadView, WaitKind
from ncclwatch.contract.ring.call_sites import is_gradient_bucket
from ncclwatch_server.judge.theory.pulse import is_lost

READING_S = 1.0  # in a call that reads from the device
STANDING_S = 3.0  # at one instruction anywhere else, without CPU
SPINNING_S = 6.0  # the same with CPU: a host that waits for CUDA spins by default, and one that computes looks alike

# Calls that wait for a device; a host stands in them when it has run ahead. Others may, when the launch queue is full.
READS = frozenset(
    "item tolist cpu numpy synchronize nonzero wait_event current_stream_synchronize is_nonzero equal allclose "
    "masked_select unique save".split()
)
# Calls that wait for something else on the host.
_HOST_WAITS = frozenset(
    "sleep acquire join get put select poll recv accept connect read readline readinto open flock lockf system "
    "waitpid communicate input result urlopen".split()
)
_HOST_MODULES = ("threading", "queue", "selectors", "socket", "ssl", "subprocess", "connection", "popen_fork", "fcntl")
# A thread that says of itself that it is in one of these waits for a device all the same.
_INSIDE = (None, WaitKind.BACKWARD, WaitKind.DESTROY, WaitKind.SAVE)
_OPERATIONS = (WaitKind.COLLECTIVE, WaitKind.SEND, WaitKind.RECV)


def pending_on_device(view: RankView) -> tuple[OpView, ...]:
    """Return the oldest unfinished collective of each group on a device, and the messages that the device is in.

    The one issued first comes first.
    """
    if is_lost(view):
        return ()
    found = [
        (group.pending.age_s, group.pending)
        for group in view.groups
        if group.asynchronous and not group.destroyed and group.pending is not None
    ]
    found += [(message.age_s, message) for message in messages_on_device(view)]
    if len(found) > 1:
        found.sort(key=lambda each: -each[0])
    return tuple(pending for _, pending in found)


def messages_on_device(view: RankView) -> tuple[OpView, ...]:
    """Return the sends and receives that a device is in, or comes to after what its threads have waited for."""
    return tuple(each for peer in view.peers for each in (peer.sending, peer.receiving) if each is not None)


def waits_on_device(view: RankView, thread: ThreadView) -> tuple[OpView, ...]:
    """Return the operations by which its device holds a thread up; none if it does not wait for its device."""
    pending = pending_on_device(view)
    if not pending or not (thread.main or thread.issued):
        return ()
    wait = thread.wait
    if wait is None or wait.kind in _INSIDE:
        return _in_front(thread, pending) if _stands(thread) else ()
    if wait.kind not in _OPERATIONS or not _is_asynchronous(view, wait.group):
        return ()
    # The call itself blocks: a barrier does, the first one of a communicator, and a full queue.
    front = _in_front(thread, pending)
    if wait.kind is WaitKind.COLLECTIVE and comes_first(thread, front[-1]):  # then it comes after that
        return front
    own = (each for each in pending if each not in front and (each.group, each.seq) == (wait.group, wait.seq))
    return (*front, *(each for each in own if not each.op.is_p2p or (each.op, each.peer) == (wait.op, wait.peer)))


def _in_front(thread: ThreadView, pending: tuple[OpView, ...]) -> tuple[OpView, ...]:
    """Return what a device may be held up by: one of these.

    Which of them the host waits for is not recorded, and each may go on while another does not.
    """
    ordered = next((at for at, each in enumerate(pending) if comes_first(thread, each)), len(pending))
    return pending[: ordered + 1]


def launches_in_vain(view: RankView, thread: ThreadView) -> bool:
    """Say whether a thread of autograd's stands where the launch queue is full, in a backward that main waits for.

    It spins there and has no frames of Python. What tells is that the rank has issued nothing for so long.
    """
    main = next((each for each in view.threads if each.main), None)
    if main is None or main.wait is None or main.wait.kind is not WaitKind.BACKWARD or not waits_on_device(view, main):
        return False
    newest = min((each.age_s for each in view.history), default=0.0)
    return thread.wait is None and not (thread.main or thread.leaf or thread.name) and newest >= SPINNING_S


def reads_from_device(thread: ThreadView) -> bool:
    """Say whether a thread is in a call that only its device can hold up: one that reads, or one that issues."""
    return thread.calling in READS or (thread.wait is not None and thread.wait.kind in _OPERATIONS)


def reads_what_its_device_does(view: RankView, thread: ThreadView) -> bool:
    """Say whether a thread stands where it reads a value of its device, whatever that is doing.

    It computes, or is in what nobody records while it runs: the collectives of a CUDA graph, a send or a receive.
    """
    return thread.calling in READS and thread.same_s >= READING_S and any(group.asynchronous for group in view.groups)


def may_wait_on_device(view: RankView, thread: ThreadView) -> bool:
    """Say whether a thread reads from a device of which nobody knows what it has finished: it may be a victim.

    Nor does anybody know, of sends and receives that are not finished, which one it is that the device waits in.
    """
    if thread.calling not in READS:
        return False
    names = {group.name for group in view.groups if group.asynchronous}
    p2p = [peer for peer in view.peers if peer.group in names]
    return any(group.blind and group.enqueued for group in view.groups) or any(
        peer.sends > peer.sends_completed or peer.recvs > peer.recvs_completed for peer in p2p
    )


def may_wait_in_p2p(view: RankView, issued: OpView) -> bool:
    """Say whether a device may not have come to an operation yet, for a send or a receive issued before it.

    Which of them comes first on the device is not recorded. Where something that came after it is through, it is, too.
    """
    names = {group.name for group in view.groups if group.asynchronous}
    before = iter(reversed(view.history))
    if not any((each.group, each.seq, each.op) == (issued.group, issued.seq, issued.op) for each in before):
        return False
    for each in before:
        if each.completed and each.in_order:
            return False
        if each.op.is_p2p and each.group in names and not each.completed:
            return True
    return False


def comes_first(thread: ThreadView, issued: OpView | None) -> bool:
    """Say whether what a thread issued after an operation begins after it on the device, in whatever group.

    DDP issues gradient buckets without waiting, and has waited for all of them when backward() returns.
    """
    if issued is None:
        return False
    in_backward = thread.wait is not None and thread.wait.kind is WaitKind.BACKWARD
    return issued.in_order or (is_gradient_bucket(issued.label) and not in_backward)


def _is_asynchronous(view: RankView, name: str) -> bool:
    return any(group.name == name and group.asynchronous for group in view.groups)


def _stands(thread: ThreadView) -> bool:
    """Say whether a host thread stands at one instruction, for long enough and not for reasons of its own."""
    _, _, place = thread.leaf.partition(" ")
    module = place.rpartition(":")[0].rpartition("/")[2].removesuffix(".py")
    if thread.calling in _HOST_WAITS or module in _HOST_MODULES:
        return False
    if thread.calling in READS:
        return thread.same_s >= READING_S
    if thread.cpu_still_s > 0:
        return min(thread.same_s, thread.cpu_still_s) >= STANDING_S
    return thread.same_s >= SPINNING_S


def held_back_by(view: RankView, group: GroupView, seq: int) -> OpView | None:
    """Return the operation behind which a rank's part of a collective has not begun yet, None if there is none.

    `group` is the rank's own view of a group on a device; the rank has issued the collective.
    """
    if not group.asynchronous or group.completed >= seq:
        return None
    if group.pending is None:
        return None
    # A message that its thread has not waited for may be under way beside a collective.
    before = [each for each in pending_on_device(view) if each.in_order or not each.op.is_p2p]
    if group.pending.seq >= seq and group.pending in before:  # what was issued later does not come first
        before = before[: before.index(group.pending)]
    sure = (each for each in before if each.in_order or each.group == group.name)
    return next(sure, None) or next(iter(before), None)


def message_held_back_by(view: RankView, name: str, op: Op, peer: int, seq: int) -> OpView | None:
    """Return what a device has to finish before it comes to a message that its rank has issued, None if nothing.

    `seq` counts the messages of this kind between the two.
    """
    own = next((each for each in view.peers if (each.group, each.peer) == (name, peer)), None)
    if own is None or not own.told:
        return None
    through, at_it = (own.sends_completed, own.sending) if op is Op.SEND else (own.recvs_completed, own.receiving)
    pending = pending_on_device(view)
    front = pending[: next((at + 1 for at, each in enumerate(pending) if each.in_order), len(pending))]
    if through >= seq or not front or (through + 1 == seq and at_it in front):
        return None
    return front[0]
