"""Ranks that count as blocked, and in what: each bound that keeps a rank at work from being one."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import (
    Ending,
    FileView,
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
from ncclwatch_server.judge.theory.waits.rank_standing import (
    STORE_RANKS_MAX,
    UNTOLD,
    UNTOLD_RANK,
    Operation,
    RankStanding,
    Standing,
    agree,
    find_issued,
    generation,
    group_of,
    has_entered,
    held_back,
    sides_of,
    standings,
    timeout_of,
)
from tests.unit.server.server_values import view


def op(seq: int, **changes: object) -> OpView:
    return replace(OpView(group="dp", seq=seq, op=Op.ALL_REDUCE, age_s=9.0), **changes)  # type: ignore[arg-type]


def group(enqueued: int = 4, completed: int = 3, **changes: object) -> GroupView:
    fields = GroupView(name="dp", desc="", ranks=(0, 1), enqueued=enqueued, completed=completed, prefix_hash=0)
    return replace(fields, **changes)  # type: ignore[arg-type]


def thread(wait: WaitView | None = None, **changes: object) -> ThreadView:
    return replace(ThreadView(tid=1, main=True, issued=4, wait=wait), **changes)  # type: ignore[arg-type]


def inside(age_s: float = 9.0, kind: WaitKind = WaitKind.COLLECTIVE, **changes: object) -> WaitView:
    return replace(WaitView(kind=kind, age_s=age_s, group="dp", seq=4, op=Op.ALL_REDUCE), **changes)  # type: ignore


def rank(*threads: ThreadView, **changes: object) -> RankView:
    fields = {"threads": threads, "groups": (group(),), "history": (op(3), op(4))} | changes
    return replace(view(0), **fields)  # type: ignore[arg-type]


def standing(*ranks: RankView, world: int = 2) -> RankStanding:
    """Return the standing of the first."""
    views = {each.rank: each for each in ranks}
    return standings(JobSnapshot(job="job", world_size=world, ranks=views, stacks={}, silent={}))[ranks[0].rank]


@pytest.mark.parametrize(("age_s", "blocked"), [(0.4, False), (0.5, True)])
def test_a_wait_of_less_than_half_a_second_may_be_over(age_s: float, blocked: bool):
    assert (standing(rank(thread(inside(age_s)))).standing is Standing.BLOCKED) is blocked


def test_a_wait_in_what_has_completed_is_over():
    assert standing(rank(thread(inside()), groups=(group(4, 4),))).standing is Standing.OUTSIDE
    assert standing(rank(thread(inside()), groups=(group(9, 3),))).standing is Standing.BLOCKED


@pytest.mark.parametrize("kind", [WaitKind.COLLECTIVE, WaitKind.SEND, WaitKind.RECV])
def test_a_wait_in_a_group_that_found_no_room_is_a_wait_for_ranks_that_nobody_knows(kind: WaitKind):
    found = standing(rank(thread(inside(group="", kind=kind))))
    (block,) = found.blocks
    assert found.standing is Standing.BLOCKED
    assert (block.operation.members, block.operation.unnamed) == ((0,), 1)
    assert has_entered(found, block.operation)


@pytest.mark.parametrize(
    ("second", "blocked"),
    [
        ({"same_s": 2.9, "cpu_still_s": 9.0, "leaf": "f"}, False),
        ({"same_s": 3.0, "cpu_still_s": 3.0, "leaf": "f"}, True),
        ({"same_s": 9.0, "cpu_still_s": 2.9, "leaf": "f"}, False),
        ({"same_s": 0.0, "cpu_still_s": 3.0, "leaf": ""}, True),  # one of the autograd engine
        ({"same_s": 0.0, "cpu_still_s": 0.0, "leaf": "f", "issued": 0}, True),  # it never issues anything
        ({"same_s": 0.0, "cpu_still_s": 0.0, "leaf": "f", "alive": False}, True),
    ],
)
def test_a_second_thread_that_issues_and_is_not_idle_may_release_the_first(second: dict[str, object], blocked: bool):
    other = thread(**({"tid": 2, "main": False} | second))  # type: ignore[arg-type]
    assert (standing(rank(thread(inside()), other)).standing is Standing.BLOCKED) is blocked


def test_a_thread_that_is_gone_is_blocked_in_nothing():
    assert standing(rank(thread(inside(), alive=False))).blocks == ()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (ProcessState.STOPPED, Standing.FROZEN),
        (ProcessState.TRACED, Standing.FROZEN),
        (ProcessState.ZOMBIE, Standing.GONE),
        (ProcessState.GONE, Standing.GONE),
        (ProcessState.SLEEPING, Standing.BLOCKED),
    ],
)
def test_the_state_of_a_process_goes_before_its_wait(state: ProcessState, said: Standing):
    assert standing(rank(thread(inside()), process=ProcessView(state=state))).standing is said


# -- backward, locks, the store ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leaf", "cpu_still_s", "age_s", "blocked"),
    [
        ("_engine_run_backward graph.py:1", 0.1, 9.0, True),
        ("_engine_run_backward graph.py:1", 0.0, 9.0, False),  # it computes
        ("hook train.py:1", 9.0, 9.0, False),
        ("_engine_run_backward graph.py:1", 9.0, 0.4, False),
        ("_engine_run_backward graph.py:1", 9.0, 0.5, True),
    ],
)
def test_in_backward_the_oldest_bucket_is_waited_for(leaf: str, cpu_still_s: float, age_s: float, blocked: bool):
    engine = thread(inside(kind=WaitKind.BACKWARD), leaf=leaf, cpu_still_s=cpu_still_s)
    found = standing(rank(engine, groups=(group(pending=op(4, age_s=age_s)),)))
    assert [block.wait.age_s for block in found.blocks] == ([age_s] if blocked else [])


@pytest.mark.parametrize(
    ("changes", "queued"),
    [({}, ["tp"]), ({"asynchronous": False}, []), ({"destroyed": True}, []), ({"pending": None}, [])],
    ids=["on the device", "on the host", "destroyed", "through"],
)
def test_what_a_device_has_still_to_do_in_other_groups_comes_after_what_it_is_in(
    changes: dict[str, object], queued: list[str]
):
    later = OpView(group="tp", seq=2, op=Op.ALL_REDUCE, age_s=8.0)
    second = replace(group(2, 1, asynchronous=True, pending=later), name="tp", **changes)  # type: ignore[arg-type]
    reading = thread(calling="item", leaf="step train.py:1", same_s=9.0)
    first = group(asynchronous=True, pending=replace(op(4), in_order=True))
    found = standing(rank(reading, groups=(first, second)))
    assert [block.operation.group for block in found.blocks] == ["dp"]
    assert [block.operation.group for block in found.queued] == queued


def test_after_a_wait_on_the_host_a_device_has_nothing_queued():
    later = OpView(group="tp", seq=2, op=Op.ALL_REDUCE, age_s=0.1)
    second = replace(group(2, 1, asynchronous=True, pending=later), name="tp")
    found = standing(rank(thread(inside()), groups=(group(), second)))
    assert ([block.operation.group for block in found.blocks], found.queued) == (["dp"], ())


def holder(pid: int = 7, host: str = "h") -> RankView:
    return replace(view(1), pid=pid, host=host)


@pytest.mark.parametrize(
    ("other", "still_s", "blocked"),
    [
        (holder(), 0.5, True),
        (holder(), 0.4, False),
        (holder(8), 9.0, False),
        (holder(host="other"), 9.0, False),  # the same number on another node
        (replace(holder(), ending=Ending(kind="exited", exit_code=0)), 9.0, False),  # its end has released the lock
    ],
)
def test_who_waits_for_a_file_lock_waits_for_the_rank_that_holds_it(other: RankView, still_s: float, blocked: bool):
    waits = rank(
        thread(cpu_still_s=still_s), process=ProcessView(state=ProcessState.SLEEPING, lock_holder=7, lock_path="/x")
    )
    found = standing(waits, other)
    assert [(b.wait.kind, b.operation.target) for b in found.blocks] == ([(WaitKind.LOCK, 1)] if blocked else [])


@pytest.mark.parametrize(("world", "blocked"), [(STORE_RANKS_MAX, True), (STORE_RANKS_MAX + 1, False)])
def test_in_a_big_job_nobody_is_asked_for_a_key_of_the_store(world: int, blocked: bool):
    found = standing(rank(thread(inside(kind=WaitKind.STORE, group=""))), world=world)
    assert bool(found.blocks) is blocked


# -- what has been entered --------------------------------------------------------------------------


def entered(seen: RankView, operation: Operation) -> bool:
    return has_entered(RankStanding(rank=seen.rank, standing=Standing.OUTSIDE, view=seen), operation)


@pytest.mark.parametrize(("seq", "there"), [(3, True), (4, True), (5, False)])
def test_a_collective_is_entered_once_it_was_issued(seq: int, there: bool):
    assert entered(rank(), Operation(group="dp", seq=seq, members=(0, 1))) is there
    assert not entered(rank(), Operation(group="tp", seq=1, members=(0, 1)))


@pytest.mark.parametrize(
    ("kind", "peer", "there"),
    [
        (WaitKind.SEND, PeerView(group="dp", peer=1, recvs=2), True),
        (WaitKind.SEND, PeerView(group="dp", peer=1, recvs=1), False),
        (WaitKind.SEND, PeerView(group="dp", peer=1, sends=2), False),
        (WaitKind.SEND, PeerView(group="dp", peer=-1, recvs=2), True),  # a receive from anyone
        (WaitKind.SEND, PeerView(group="dp", peer=2, recvs=2), False),
        (WaitKind.SEND, PeerView(group="tp", peer=1, recvs=2), False),
        (WaitKind.RECV, PeerView(group="dp", peer=1, sends=2), True),
        (WaitKind.RECV, PeerView(group="dp", peer=1, sends=1, recvs=9), False),
    ],
)
def test_a_message_is_met_by_the_other_side_of_that_pair(kind: WaitKind, peer: PeerView, there: bool):
    source, target = (1, 0) if kind is WaitKind.SEND else (0, 1)
    operation = Operation(group="dp", seq=2, members=(0, 1), kind=kind, source=source, target=target)
    assert entered(rank(peers=(peer,)), operation) is there
    assert entered(rank(), replace(operation, source=target, target=source))  # who waits in it has entered it


@pytest.mark.parametrize(
    ("one", "other", "alike"), [(0, 0, True), (0, 100, False), (-1, 100, True)], ids=["same", "none", "not told"]
)
def test_parts_of_two_sizes_are_no_collective_unless_one_size_is_not_told(one: int, other: int, alike: bool):
    issued = {0: op(4, numel=one), 1: op(4, numel=other), 2: op(4, numel=other)}
    assert sides_of(issued) == (((0, 1, 2),) if alike else ((0,), (1, 2)))
    assert agree(issued[0], issued[1]) is alike


def test_a_rendezvous_is_entered_by_who_is_in_it_or_through():
    init = Operation(group="init", seq=0, members=(0, 1), kind=WaitKind.INIT)
    assert entered(rank(), init)
    assert not entered(rank(initialised=False), init)
    assert entered(rank(thread(inside(kind=WaitKind.INIT)), initialised=False), init)
    assert not entered(rank(), replace(init, seq=1))  # the others initialise again
    assert entered(rank(groups=(group(name="0~1", destroyed=True),)), replace(init, seq=1))
    making = Operation(group="new_group", seq=0, members=(0, 1), kind=WaitKind.NEW_GROUP)
    assert not entered(rank(), making)
    assert entered(rank(thread(inside(kind=WaitKind.NEW_GROUP))), making)


def test_how_often_the_default_group_was_destroyed_is_counted():
    groups = group(name="0", destroyed=True), group(name="0~1"), group(name="1", destroyed=True)
    assert generation(rank(groups=groups)) == 1


def test_the_newest_group_of_a_name_counts_and_its_timeout_goes_before_the_default():
    old, new = group(timeout_s=60.0), group(5)
    assert group_of(rank(groups=(old, new)), "dp") is new
    assert timeout_of(rank(groups=(old,), timeout_s=600.0), "dp") == 60.0
    assert timeout_of(rank(groups=(new,), timeout_s=600.0), "dp") == 600.0
    assert timeout_of(rank(timeout_s=600.0), "tp") == 0.0


def test_an_operation_is_looked_up_by_its_number_and_kind():
    message, other = op(4, op=Op.SEND, peer=1), op(4, op=Op.SEND, peer=2)
    seen = rank(history=(op(3), op(4), message, other))
    assert find_issued(seen, "dp", 4) == op(4)
    assert find_issued(seen, "dp", 4, (Op.SEND, 1)) is message
    assert find_issued(seen, "tp", 4) is None
    forgotten = rank(history=(), groups=(group(pending=op(4)),))
    assert find_issued(forgotten, "dp", 4) == op(4)
    assert find_issued(forgotten, "dp", 3) is None
    assert find_issued(forgotten, "dp", 4, (Op.SEND, 1)) is None


@pytest.mark.parametrize(
    ("seq", "kind", "behind"),
    [
        (5, WaitKind.COLLECTIVE, True),
        (4, WaitKind.COLLECTIVE, False),
        (6, WaitKind.COLLECTIVE, False),
        (5, WaitKind.SEND, False),
    ],
)
def test_only_what_was_issued_is_held_back_by_what_came_before(seq: int, kind: WaitKind, behind: bool):
    seen = rank(groups=(group(5, 3, asynchronous=True, pending=op(4)),))
    operation = Operation(group="dp", seq=seq, members=(0, 1), kind=kind)
    found = held_back(RankStanding(rank=0, standing=Standing.BLOCKED, view=seen), operation)
    assert (found is not None) is behind


@pytest.mark.parametrize("untold", [{"numel": -1}, {"dtype": UNTOLD}])
def test_a_part_that_is_told_partly_joins_no_side_where_it_may_belong_to_either(untold: dict[str, object]):
    told = {"numel": 5, "dtype": "float32"}
    issued = {0: op(4, **told), 1: op(4, numel=7, dtype="bfloat16"), 2: op(4, **(told | untold))}
    assert sides_of(issued) == ((0, 2), (1,))
    other = {key: told[key] for key in told if key not in untold} | ({"numel": 7} if "numel" in untold else {})
    issued[1] = op(4, **({"dtype": "bfloat16"} | other))
    assert sides_of(issued) == ((0,), (1,))


@pytest.mark.parametrize(("peer", "root"), [(2, 2), (0, 0), (-1, UNTOLD_RANK)])
def test_of_a_record_that_cannot_be_read_the_root_is_known_from_the_wait(peer: int, root: int):
    seen = rank(thread(inside(op=Op.BROADCAST, peer=peer)), history=())
    found = find_issued(seen, "dp", 4)
    assert found is not None
    assert (found.op, found.peer) == (Op.BROADCAST, root)


@pytest.mark.parametrize(("asynchronous", "waits_in", "queued"), [(True, ["dp"], ["tp"]), (False, ["dp", "tp"], [])])
def test_by_its_file_a_rank_waits_in_the_oldest_of_a_device_and_in_all_that_no_device_orders(
    asynchronous: bool, waits_in: list[str], queued: list[str]
):
    groups = tuple(
        group(name=name, asynchronous=asynchronous, pending=op(4, group=name, age_s=age_s))
        for name, age_s in (("tp", 8.0), ("dp", 9.0))
    )
    found = standing(rank(thread(), groups=groups, file=FileView(source="recorder", path="dump", timed=True)))
    assert [block.operation.group for block in found.blocks] == waits_in
    assert [block.operation.group for block in found.queued] == queued
