"""Where a device stands is told in part by its rank; the rest is found by replay."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ncclwatch.contract.model.job import JobSnapshot
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
from ncclwatch_server.judge.theory.repair.cuts import Counts
from ncclwatch_server.judge.theory.repair.findings import find
from ncclwatch_server.judge.theory.repair.hang import find_way, settle
from ncclwatch_server.judge.theory.repair.lines import place_of
from ncclwatch_server.judge.theory.repair.replay import Script, Stage, play
from ncclwatch_server.judge.theory.repair.tapes import Call, End, Tape, read, write
from ncclwatch_server.judge.theory.waits.rank_standing import RankStanding, Standing, standings
from tests.unit.server.server_values import view


def op(seq: int, kind: Op = Op.ALL_REDUCE, **changes: object) -> OpView:
    return replace(OpView(group="dp", seq=seq, op=kind, in_order=True, age_s=9.0), **changes)  # type: ignore[arg-type]


def tape(*history: OpView, blind: bool = False, peers: Sequence[PeerView] = (), lost: bool = False) -> Tape:
    group = GroupView(
        name="dp", desc="", ranks=(0, 1), enqueued=9, completed=0, prefix_hash=0, asynchronous=True, blind=blind
    )
    seen = replace(view(0), history=history, groups=(group,), peers=tuple(peers), pulse_age_s=99.0 if lost else 0.1)
    return read({0: RankStanding(rank=0, standing=Standing.BLOCKED, view=seen)}).by_rank[0]


def test_a_device_stands_between_what_is_through_and_what_is_not() -> None:
    found = tape(op(1, completed=True), op(1, Op.SEND, peer=1), op(2), op(3))
    assert (found.through, found.stop) == (1, 2)


def test_nobody_tells_of_messages_on_a_device() -> None:
    found = tape(op(1, completed=True), op(1, Op.SEND, peer=1), op(2, Op.SEND, peer=1))
    assert (found.through, found.stop) == (1, 3)


def test_nobody_tells_of_a_blind_group() -> None:
    assert tape(op(1), op(2), blind=True).stop == 2


def test_what_a_rank_said_whose_pulse_is_lost_may_have_ended_since() -> None:
    found = tape(op(1, completed=True), op(2), lost=True)
    assert (found.through, found.stop) == (1, 2)


def test_an_asynchronous_operation_holds_nothing_up() -> None:
    assert tape(op(1), op(2, in_order=False), op(3)).stop == 0
    assert tape(op(2, in_order=False), op(3)).stop == 1


def test_messages_are_counted_back_from_how_many_there_were() -> None:
    sends = [op(number, Op.SEND, peer=1) for number in (70, 75)]
    found = tape(op(5, completed=True), *sends, peers=[PeerView(group="dp", peer=1, sends=12)])
    assert found.seqs == (5, 11, 12)


CALLS = [Call(group="dp", op=Op.ALL_REDUCE, numel=number) for number in (1, 2, 3)]


def test_a_replay_finds_where_a_device_stands() -> None:
    whole = write({"dp": (0, 1)}, {0: CALLS, 1: [*CALLS[:2], CALLS[0]]}, {})
    loose = replace(whole, by_rank={rank: replace(each, through=0, stop=3) for rank, each in whole.by_rank.items()})
    found = settle(loose, Counts(loose))
    assert found is not None
    assert [(each.stop, each.through) for each in found.by_rank.values()] == [(2, -1), (2, -1)]


def test_a_replay_that_leads_past_what_is_not_through_tells_nothing() -> None:
    whole = write({"dp": (0, 1)}, {0: CALLS, 1: CALLS}, {})
    loose = replace(whole, by_rank={rank: replace(each, through=0, stop=1) for rank, each in whole.by_rank.items()})
    assert settle(loose, Counts(loose)) is None


@pytest.mark.parametrize(("joins", "at"), [(False, 2), (True, 1)])
def test_what_comes_after_an_asynchronous_collective_may_wait_for_it(joins: bool, at: int) -> None:
    other = Call(group="tp", op=Op.ALL_REDUCE)
    found = write({"dp": (0, 1), "tp": (0, 1)}, {0: [replace(CALLS[0], waits=False), other], 1: [other, CALLS[1]]}, {})
    scripts = [Script(each.calls, End.BLOCKED, -1) for each in found.by_rank.values()]
    outcome = play(Stage(found, joins=[place_of(other)] if joins else ()), scripts, eager=True)
    assert outcome.at[0] == at


def test_where_ranks_wait_for_asynchronous_collectives_is_found_by_replay() -> None:
    bucket, other = replace(CALLS[0], waits=False), Call(group="tp", op=Op.ALL_REDUCE)
    found = write({"dp": (0, 1, 2), "tp": (0, 1)}, {0: [bucket, other], 1: [bucket, other], 2: []}, {2: End.STANDS})
    scripts = [Script(each.calls, each.end) for each in found.by_rank.values()]
    way = find_way(lambda joins: Stage(found, joins=joins), scripts, [(1, 1), (1, 1), (0, 0)])
    assert way is not None
    assert (way.joins, way.outcome.stuck) == ({place_of(other)}, {0, 1})
    assert find_way(lambda joins: Stage(found, joins=joins), scripts, [(0, 0), (1, 1), (0, 0)]) is None


def rank_on_device(rank: int, ops: Sequence[OpView], sends: int, recvs: int) -> RankView:
    """Return a rank whose host reads from a device that has not finished the last of some operations."""
    count = sum(not each.op.is_p2p for each in ops)
    group = GroupView(
        name="dp", desc="", ranks=(0, 1, 2), enqueued=count, completed=count - 1, prefix_hash=0,
        pending=next(each for each in reversed(ops) if not each.op.is_p2p), asynchronous=True,
    )  # fmt: skip
    wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=60.0, group="dp", seq=count, op=group.pending.op)  # type: ignore
    thread = ThreadView(tid=1, main=True, issued=len(ops), wait=wait, same_s=60.0, cpu_still_s=60.0)
    peers = (PeerView(group="dp", peer=1 - rank, sends=sends, recvs=recvs),) if sends or recvs else ()
    process = ProcessView(state=ProcessState.SLEEPING, cpu_still_s=60.0)
    return replace(
        view(rank), threads=(thread,), groups=(group,), peers=peers, history=tuple(ops), process=process, world_size=3
    )


def test_a_wrong_collective_behind_messages_on_a_device_is_found() -> None:
    def at(line: int) -> CallSite:
        return CallSite(file="train.py", line=line, function="f")

    first = op(1, completed=True, site=at(1))
    last = op(2, site=at(3), age_s=60.0)
    wrong = op(2, Op.BARRIER, site=at(4), age_s=60.0)
    views = {
        0: rank_on_device(0, [first, op(1, Op.SEND, peer=1, site=at(2)), last], 1, 0),
        1: rank_on_device(1, [first, op(1, Op.RECV, peer=0, site=at(2)), last], 0, 1),
        2: rank_on_device(2, [first, wrong], 0, 0),
    }
    snapshot = JobSnapshot(job="job", world_size=3, ranks=views, stacks={}, silent={})
    finding = find(read(standings(snapshot)))
    assert [each.rank for each in finding.suspects] == [2]
