"""When a host counts as held up by its device: each bound just below, at, and above."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import (
    CallSite,
    GroupView,
    Op,
    OpView,
    PeerView,
    ProcessState,
    ProcessView,
    RankView,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch_server.judge.theory.waits.device_order import (
    comes_first,
    held_back_by,
    may_wait_on_device,
    message_held_back_by,
    messages_on_device,
    pending_on_device,
    reads_from_device,
    waits_on_device,
)

SITE = CallSite(file="/home/user/train.py", line=46, function="step")


def op(group: str, seq: int, age_s: float) -> OpView:
    return OpView(group=group, seq=seq, op=Op.ALL_REDUCE, age_s=age_s, site=SITE)


def group(name: str, pending: OpView | None, **changes: object) -> GroupView:
    completed = pending.seq - 1 if pending else 20
    fields = {"enqueued": 20, "completed": completed, "asynchronous": True} | changes
    return GroupView(name=name, desc="", ranks=(0, 1), prefix_hash=0, pending=pending, **fields)


def thread(**changes: object) -> ThreadView:
    return ThreadView(**({"tid": 1, "main": True, "issued": 9, "leaf": "step /home/user/train.py:46"} | changes))


def view(*groups: GroupView, pulse_age_s: float = 0.2) -> RankView:
    return RankView(
        rank=0, local_rank=0, host="a", pid=1, device="", world_size=2, local_world_size=2, attempt=0,
        process=ProcessView(state=ProcessState.SLEEPING), pulse_age_s=pulse_age_s, initialised=True, groups=groups,
    )  # fmt: skip


PENDING = op("dp", 11, 20.0)


@pytest.mark.parametrize(
    ("calling", "same_s", "cpu_still_s", "held_up"),
    [
        ("item", 0.9, 0.0, False),
        ("item", 1.0, 0.0, True),  # a host that waits for CUDA spins
        ("conv2d", 5.9, 0.0, False),  # it may as well compute
        ("conv2d", 6.0, 0.0, True),  # the launch queue is full
        ("conv2d", 2.9, 9.0, False),
        ("conv2d", 9.0, 2.9, False),
        ("conv2d", 9.0, 0.5, False),  # it has used some a moment ago, and does not spin
        ("conv2d", 3.0, 3.0, True),
        ("", 3.0, 3.0, True),
        ("acquire", 60.0, 60.0, False),
        ("sleep", 60.0, 0.0, False),
    ],
)
def test_a_host_is_held_up_when_it_stands_where_a_device_may_hold_it(
    calling: str, same_s: float, cpu_still_s: float, held_up: bool
):
    standing = thread(calling=calling, same_s=same_s, cpu_still_s=cpu_still_s)
    assert waits_on_device(view(group("dp", PENDING)), standing) == ((PENDING,) if held_up else ())


def test_a_host_inside_of_a_queue_or_a_lock_waits_for_no_device():
    standing = thread(leaf="wait /usr/lib/python3.11/threading.py:327", same_s=60.0, cpu_still_s=60.0)
    assert waits_on_device(view(group("dp", PENDING)), standing) == ()


@pytest.mark.parametrize("kind", [WaitKind.DATA, WaitKind.STORE, WaitKind.INIT, WaitKind.NEW_GROUP])
def test_a_wait_of_another_kind_is_believed(kind: WaitKind):
    standing = thread(wait=WaitView(kind=kind, age_s=60.0), same_s=60.0, cpu_still_s=60.0, calling="item")
    assert waits_on_device(view(group("dp", PENDING)), standing) == ()


def test_a_collective_on_the_host_is_waited_for_there():
    gloo = group("cpu", op("cpu", 3, 5.0), asynchronous=False)
    standing = thread(wait=WaitView(kind=WaitKind.COLLECTIVE, age_s=5.0, group="cpu", seq=3), same_s=5.0)
    assert waits_on_device(view(group("dp", PENDING), gloo), standing) == ()


def test_a_call_that_blocks_waits_for_the_oldest_of_all_and_for_itself():
    barrier = op("tp", 4, 5.0)
    standing = thread(wait=WaitView(kind=WaitKind.COLLECTIVE, age_s=5.0, group="tp", seq=4))
    assert waits_on_device(view(group("tp", barrier), group("dp", PENDING)), standing) == (PENDING, barrier)


def test_a_message_that_blocks_waits_for_itself_and_not_for_the_one_the_other_way():
    send, receive = (
        replace(op("dp", 4, 5.0), op=kind, peer=peer, in_order=False) for kind, peer in ((Op.SEND, 1), (Op.RECV, 2))
    )
    peers = (
        PeerView(group="pp", peer=1, sends=4, sends_completed=3, told=True, sending=replace(send, group="pp")),
        PeerView(group="pp", peer=2, recvs=4, recvs_completed=3, told=True, receiving=replace(receive, group="pp")),
    )
    first = replace(PENDING, in_order=True)
    waits = WaitView(kind=WaitKind.SEND, age_s=5.0, group="pp", seq=4, op=Op.SEND, peer=1)
    seen = replace(view(group("pp", None), group("dp", first)), peers=peers)
    assert waits_on_device(seen, thread(wait=waits)) == (first, replace(send, group="pp"))


def test_a_call_far_ahead_waits_for_the_oldest_of_its_stream():
    standing = thread(wait=WaitView(kind=WaitKind.COLLECTIVE, age_s=5.0, group="dp", seq=19))
    assert waits_on_device(view(group("dp", PENDING)), standing) == (PENDING,)


@pytest.mark.parametrize(("pulse_age_s", "known"), [(2.9, True), (3.0, False)])
def test_without_a_pulse_nobody_knows_what_is_finished(pulse_age_s: float, known: bool):
    assert bool(pending_on_device(view(group("dp", PENDING), pulse_age_s=pulse_age_s))) is known


def test_a_group_on_the_host_a_destroyed_one_and_a_finished_one_hold_nobody_up():
    groups = group("a", PENDING, asynchronous=False), group("b", PENDING, destroyed=True), group("c", None)
    assert pending_on_device(view(*groups)) == ()


def test_a_second_thread_that_never_issued_anything_is_not_held_up():
    standing = thread(main=False, issued=0, same_s=60.0, cpu_still_s=60.0)
    assert waits_on_device(view(group("dp", PENDING)), standing) == ()


@pytest.mark.parametrize(
    ("calling", "kind", "reads"),
    [
        ("item", None, True),
        ("conv2d", None, False),
        ("", WaitKind.COLLECTIVE, True),
        ("", WaitKind.RECV, True),
        ("", WaitKind.BACKWARD, False),
        ("", WaitKind.STORE, False),
    ],
)
def test_only_a_call_that_reads_or_issues_is_held_up_by_a_device_for_certain(
    calling: str, kind: WaitKind | None, reads: bool
):
    wait = WaitView(kind=kind, age_s=5.0) if kind else None
    assert reads_from_device(thread(calling=calling, wait=wait)) is reads


@pytest.mark.parametrize(
    ("label", "in_order", "wait", "first"),
    [
        ("", False, None, False),
        ("", True, None, True),
        ("gradient bucket 0 (fc.weight)", False, None, True),
        ("gradient bucket 0 (fc.weight)", False, WaitView(kind=WaitKind.BACKWARD, age_s=3.0), False),
        ("FSDP unit layers.0", False, None, False),
    ],
)
def test_what_comes_first_on_a_device(label: str, in_order: bool, wait: WaitView | None, first: bool):
    issued = OpView(group="dp", seq=11, op=Op.ALL_REDUCE, label=label, in_order=in_order)
    assert comes_first(thread(wait=wait), issued) is first


@pytest.mark.parametrize(
    ("calling", "asynchronous", "blind", "recvs_completed", "may"),
    [
        ("item", True, False, 3, False),
        ("item", True, False, 2, True),
        ("sleep", True, False, 2, False),
        ("item", False, False, 2, False),
        ("item", True, True, 3, True),
    ],
)
def test_a_host_that_reads_may_be_held_up_by_what_nobody_knows(
    calling: str, asynchronous: bool, blind: bool, recvs_completed: int, may: bool
):
    peer = PeerView(group="dp", peer=1, sends=3, sends_completed=3, recvs=3, recvs_completed=recvs_completed)
    here = replace(view(group("dp", None, asynchronous=asynchronous, blind=blind)), peers=(peer,))
    assert may_wait_on_device(here, thread(calling=calling)) is may


def test_what_was_issued_later_is_held_back_by_what_was_issued_first():
    older, younger = op("a", 11, 9.0), op("b", 7, 8.0)
    here = view(group("a", older), group("b", younger))
    in_a, in_b = here.groups
    assert held_back_by(here, in_b, 7) == older
    assert held_back_by(here, in_a, 11) is None
    assert held_back_by(here, in_a, 12) == older  # behind it in the same stream
    assert held_back_by(here, in_a, 10) is None  # it is through


def test_a_device_is_in_the_messages_that_its_backend_tells_and_may_be_held_up_by_each_until_one_is_in_order():
    older, newer = (OpView(group="pp", seq=seq, op=Op.SEND, peer=1, age_s=age) for seq, age in ((3, 9.0), (4, 8.0)))
    received = OpView(group="pp", seq=3, op=Op.RECV, peer=2, age_s=8.5, in_order=True)
    after = OpView(group="pp", seq=1, op=Op.RECV, peer=3, age_s=7.5, in_order=True)
    peers = (
        PeerView(group="pp", peer=1, sends=4, sends_completed=2, told=True, sending=older),
        PeerView(group="pp", peer=2, recvs=3, recvs_completed=2, told=True, receiving=received),
        PeerView(group="pp", peer=3, recvs=1, told=True, receiving=after),
    )
    reduced = op("dp", 1, 7.0)
    own, reading = group("dp", reduced, enqueued=1), thread(calling="item", same_s=5.0)
    seen = replace(view(own), peers=peers, history=(older, received, newer, after, reduced))
    assert messages_on_device(seen) == (older, received, after)
    assert waits_on_device(seen, reading) == (older, received)
    assert held_back_by(seen, own, 1) == received
    assert message_held_back_by(seen, "pp", Op.SEND, 1, 3) is None
    assert message_held_back_by(seen, "pp", Op.SEND, 1, 4) == older
    assert message_held_back_by(seen, "pp", Op.RECV, 2, 3) is None
    assert message_held_back_by(seen, "pp", Op.RECV, 3, 1) == older
    untold = replace(seen, peers=tuple(replace(each, told=False, sending=None, receiving=None) for each in peers))
    assert (messages_on_device(untold), held_back_by(untold, own, 1)) == ((), None)
    assert message_held_back_by(untold, "pp", Op.SEND, 1, 4) is None
