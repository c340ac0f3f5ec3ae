"""What of a group is not complete, by entries in the layout that torch 2.11 writes with NCCL 2.28."""

from collections.abc import Mapping
from typing import Any

import pytest

from ncclwatch.rank.device.entries import Account, read_account
from ncclwatch.rank.operations import RECV, SEND

RANKS = (4, 6, 9)


class Log:
    """Entries as NCCL adds them for one rank, the second of its group."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.numbers = {"collective_seq_id": 0, "p2p_seq_id": 0}
        self.op_id = 0

    def _add(self, name: str, *, done: bool, counts: bool = True) -> None:
        self.op_id += counts
        state = "completed" if done else "scheduled"
        self.entries.append(
            {"record_id": len(self.entries), "op_id": self.op_id, "profiling_name": name, "state": state}
            | self.numbers
        )  # fmt: skip

    def alone(self, name: str, *, done: bool = True) -> "Log":
        self.numbers["p2p_seq_id" if "->" in name or "<-" in name else "collective_seq_id"] += 1
        self._add(name, done=done)
        return self

    def batch(self, *names: str, done: bool = True) -> "Log":
        self.numbers["p2p_seq_id" if "->" in names[0] or "<-" in names[0] else "collective_seq_id"] += 1
        for name in names:
            self._add(name, done=False)  # nobody marks these
        self._add("nccl:coalesced", done=done, counts=False)
        return self


def account(log: Log) -> Account | None:
    return read_account(log.entries, RANKS)


def test_what_has_ended_is_not_outstanding() -> None:
    log = Log().alone("nccl:all_reduce").alone("nccl:send 1->2").alone("nccl:recv 1<-0")
    assert account(log) == Account(3, {}, frozenset())


def test_the_entries_of_a_batch_that_has_ended_are_never_marked_and_have_ended_with_it() -> None:
    log = Log().batch("nccl:send 1->2", "nccl:recv 1<-0").batch("nccl:all_reduce", "nccl:_all_gather_base")
    assert account(log) == Account(4, {}, frozenset())


def test_messages_are_counted_by_their_end_in_the_job() -> None:
    log = (
        Log()
        .alone("nccl:send 1->2", done=False)
        .alone("nccl:send 1->2", done=False)
        .alone("nccl:recv 1<-0", done=False)
    )
    assert account(log) == Account(3, {(SEND, 9): 2, (RECV, 4): 1}, frozenset({(SEND, 9), (RECV, 4)}))


def test_two_messages_of_one_pair_are_under_way_one_after_the_other() -> None:
    log = Log().alone("nccl:send 1->2", done=False).alone("nccl:recv 1<-2", done=False)
    assert account(log) == Account(2, {(SEND, 9): 1, (RECV, 9): 1}, frozenset({(SEND, 9)}))


def test_all_of_a_batch_is_under_way_and_the_next_one_is_behind_it() -> None:
    log = Log().batch("nccl:send 1->2", "nccl:recv 1<-2", done=False).batch("nccl:recv 1<-0", done=False)
    wanted = {(SEND, 9): 1, (RECV, 9): 1, (RECV, 4): 1}
    assert account(log) == Account(3, wanted, frozenset({(SEND, 9), (RECV, 9)}))


def test_a_batch_is_behind_a_collective_of_its_group_and_a_message_alone_is_not() -> None:
    log = Log().alone("nccl:all_reduce", done=False).batch("nccl:send 1->2", done=False)
    log.alone("nccl:recv 1<-0", done=False)
    assert account(log) == Account(3, {None: 1, (SEND, 9): 1, (RECV, 4): 1}, frozenset({(RECV, 4)}))


def _without_operation_numbers(entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        del entry["op_id"]


def _overwritten(entries: list[dict[str, Any]]) -> None:
    del entries[0]


def _without_parts(entries: list[dict[str, Any]]) -> None:
    entries[:] = [entry for entry in entries if entry["profiling_name"] == "nccl:coalesced"]


def _of_more_ranks(entries: list[dict[str, Any]]) -> None:
    entries[0]["profiling_name"] = "nccl:send 1->5"


@pytest.mark.parametrize(
    "spoil", [_without_operation_numbers, _overwritten, _without_parts, _of_more_ranks, list[Mapping[str, Any]].clear]
)
def test_entries_that_do_not_tell_enough_tell_nothing(spoil: Any) -> None:
    log = Log().batch("nccl:send 1->2", "nccl:send 1->0", done=False)
    assert account(log) is not None
    spoil(log.entries)
    assert account(log) is None
