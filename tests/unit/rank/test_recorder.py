"""The recorder's books: sequence numbers, prefix hashes, waits, works."""

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.call_sites import parse
from ncclwatch.contract.ring.layout import OPS, Flag, Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.operations import Group
from ncclwatch.rank.recorder import FORGOTTEN_KEPT, NEWEST_KEPT, P2P_MAX, RETIRED_NUMEL_MAX, WORKS_MAX, Recorder
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch.rank.where import call_sites
from ncclwatch.rank.where.call_sites import describe_exception

ALL_REDUCE, BARRIER, SEND = (OPS.index(op) for op in (Op.ALL_REDUCE, Op.BARRIER, Op.SEND))
SUM = (-1, 1, 1)


class FakeWork:
    """A work whose completion the test decides."""

    def __init__(self) -> None:
        self.completed = False

    def is_completed(self) -> bool:
        return self.completed


@pytest.fixture
def recorder(tmp_path: Path):
    ring = RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(4, 4), attempt=0)
    yield Recorder(ring)
    ring.close()


def read(recorder: Recorder) -> Ring:
    return Ring(recorder.ring.path)


def test_equal_histories_have_equal_prefix_hashes_and_order_matters(recorder: Recorder):
    a, b, c = (recorder.add_group(name, "", [0, 1], 0) for name in "abc")
    for group, ops in ((a, (ALL_REDUCE, BARRIER)), (b, (ALL_REDUCE, BARRIER)), (c, (BARRIER, ALL_REDUCE))):
        for op in ops:
            recorder.issue(group, op, 8, SUM, 0)
    assert a.prefix == b.prefix != c.prefix


def test_an_operation_that_the_backend_refuses_leaves_no_gap_and_no_trace_in_the_hash(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    recorder.issue(group, ALL_REDUCE, 8, SUM, 0)
    before = group.prefix
    recorder.refuse(recorder.issue(group, BARRIER, 0, SUM, 0))
    assert (group.prefix, group.enqueued) == (before, 1)
    assert recorder.issue(group, ALL_REDUCE, 8, SUM, 0).seq == 2


def test_completion_is_counted_in_order(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    works = [FakeWork() for _ in range(3)]
    for work in works:
        recorder.track(recorder.issue(group, ALL_REDUCE, 8, SUM, 0), work)
    works[1].completed = works[2].completed = True
    recorder.drain_all()
    assert group.completed == 0
    works[0].completed = True
    recorder.drain_all()
    assert group.completed == 3
    assert not group.works
    assert not recorder.open_works
    with read(recorder) as ring:
        assert (ring.groups()[0].enqueued, ring.groups()[0].completed) == (3, 3)


def test_returning_from_a_wait_on_host_memory_completes_a_work_that_never_says_so(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    issued = recorder.issue(group, ALL_REDUCE, 8, SUM, 0)
    recorder.track(issued, FakeWork())
    issued.done = True
    recorder.drain_all()
    assert group.completed == 1


def test_works_that_never_complete_are_not_held_without_bound(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    for _ in range(1000):
        recorder.track(recorder.issue(group, ALL_REDUCE, 8, SUM, 0), FakeWork())
    assert len(group.works) <= 257
    assert len(recorder.open_works) == len(group.works)


def test_an_inner_wait_is_told_and_the_outer_one_comes_back(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    outer = recorder.enter(WaitKind.BACKWARD)
    inner = recorder.enter(WaitKind.COLLECTIVE, 0, recorder.issue(group, ALL_REDUCE, 8, SUM, 0))
    with read(recorder) as ring:
        assert ring.threads()[0].wait.kind is WaitKind.COLLECTIVE
        recorder.leave(inner)
        assert ring.threads()[0].wait.kind is WaitKind.BACKWARD
        recorder.leave(outer)
        assert ring.threads()[0].wait is None


def test_p2p_is_counted_by_peer_and_apart_from_collectives(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1, 2], 0)
    assert [recorder.issue(group, SEND, 4, (peer, 1, 0), 0).seq for peer in (1, 2, 1)] == [1, 1, 2]
    assert group.enqueued == 0
    with read(recorder) as ring:
        assert [(peer.peer, peer.sends) for peer in ring.peers()] == [(1, 2), (2, 1)]


def test_a_send_that_the_backend_refuses_is_not_counted(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    recorder.issue(group, SEND, 8, (1, 1, 0), 0)
    recorder.refuse(recorder.issue(group, SEND, 8, (1, 1, 0), 0))
    assert read(recorder).peers()[0].sends == 1
    assert recorder.issue(group, SEND, 8, (1, 1, 0), 0).seq == 2


def test_of_more_sends_than_works_are_asked_at_once_every_completion_is_counted(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    works = [FakeWork() for _ in range(4 * WORKS_MAX)]
    for work in works:
        recorder.track(recorder.issue(group, SEND, 8, (1, 1, 0), 0), work)
    for work in works:
        work.completed = True
    recorder.drain_all()
    (peer,) = read(recorder).peers()
    assert (peer.sends, peer.sends_completed) == (4 * WORKS_MAX, 4 * WORKS_MAX)
    assert read(recorder).words()[Word.DROPPED] == 0


def test_sends_beyond_all_bounds_are_counted_as_dropped_and_finished_ones_make_room(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    works = [FakeWork() for _ in range(P2P_MAX + 1)]
    for work in works:
        recorder.track(recorder.issue(group, SEND, 8, (1, 1, 0), 0), work)
    assert read(recorder).words()[Word.DROPPED] == 1
    works[0].completed = True
    recorder.track(recorder.issue(group, SEND, 8, (1, 1, 0), 0), FakeWork())
    assert read(recorder).words()[Word.DROPPED] == 1
    assert read(recorder).peers()[0].sends_completed == 1


def test_the_head_of_the_events_never_steps_back(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    recorder.ring.set_word(Word.EVENTS_HEAD, 7)  # another thread has come further
    recorder.issue(group, ALL_REDUCE, 8, SUM, 0)
    assert recorder.ring.word(Word.EVENTS_HEAD) == 7


def test_a_program_that_makes_code_for_ever_has_its_lines_known_as_long_as_it_uses_them(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(call_sites, "KNOWN_MAX", 200)
    asked: list[str] = []
    monkeypatch.setattr(call_sites, "is_users", lambda path: bool(asked.append(path)) or path.startswith("/made"))
    for number in range(500):
        made: dict[str, Callable[[Recorder], int]] = {}
        exec(compile("def f(recorder):\n    return recorder.sites.here(1)", f"/made{number}.py", "exec"), made)
        asked.clear()
        assert made["f"](recorder) == made["f"](recorder) > 0
        assert asked.count(f"/made{number}.py") == 1
    assert len(recorder.sites._users) <= 200


def test_a_destroyed_group_is_flagged_and_its_name_can_be_used_again(recorder: Recorder):
    recorder.issue(recorder.add_group("0", "", [0, 1], 0), BARRIER, 0, SUM, 0)
    recorder.forget_group("0")
    recorder.add_group("0", "", [0, 1], 0)
    with read(recorder) as ring:
        assert [(group.flags, group.enqueued) for group in ring.groups()] == [(Flag.DESTROYED, 1), (0, 0)]


def test_what_finds_no_room_is_counted_and_training_sees_nothing_of_it(recorder: Recorder):
    for number in range(config.GROUPS_MAX + 5):
        recorder.issue(recorder.add_group(f"g{number}", "", [0], 0), BARRIER, 0, SUM, 0)
    with read(recorder) as ring:
        assert len(ring.groups()) == config.GROUPS_MAX
        assert ring.words()[11] == 5


def test_a_full_string_table_gives_no_text_instead_of_an_error(recorder: Recorder):
    ids = [recorder.ring.string(f"{number:01000d}") for number in range(400)]
    assert ids[0] > 0
    assert ids[-1] == 0
    with read(recorder) as ring:
        assert ring.string(ids[0]) == f"{0:01000d}"
        assert ring.words()[11] > 0


def test_of_a_stream_far_ahead_the_oldest_works_are_held_and_the_newest(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    group.host_waits = False
    works = [FakeWork() for _ in range(WORKS_MAX + 50)]
    for work in works:
        recorder.track(recorder.issue(group, ALL_REDUCE, 8, SUM, 0), work)
    assert (len(group.works), len(recorder.open_works), group.completed) == (WORKS_MAX, WORKS_MAX, 0)
    for work in works[: WORKS_MAX - 1]:
        work.completed = True
    recorder.drain_all()
    assert group.completed == WORKS_MAX - 1  # the next 50 are unknown until the newest is through
    works[-1].completed = True
    recorder.drain_all()
    assert (group.completed, recorder.open_works) == (WORKS_MAX + 50, {})


def test_a_work_whose_backend_tells_itself_how_far_it_is_is_neither_held_nor_asked(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    group.by_account = True

    class Unaskable:
        def is_completed(self) -> bool:
            raise AssertionError("a query of an event would end the capture of a CUDA graph")

    works = [Unaskable() for _ in range(WORKS_MAX + 50)]
    for work in works:
        recorder.track(recorder.issue(group, ALL_REDUCE, 8, SUM, 0), work)
    recorder.drain_all()
    assert (len(group.works), len(recorder.open_works), group.completed) == (0, WORKS_MAX, 0)
    newest = weakref.ref(works.pop())
    del work
    assert newest() is None


def test_flags_of_a_group_are_added_to_each_other(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    recorder.flag(group, Flag.ASYNC | Flag.BLIND)
    recorder.flag(group, Flag.BLIND, on=False)
    recorder.forget_group("0")
    with read(recorder) as ring:
        assert ring.groups()[0].flags == Flag.ASYNC | Flag.DESTROYED


def test_async_op_is_recorded_and_is_no_part_of_what_members_must_agree_on(recorder: Recorder):
    a, b = (recorder.add_group(name, "", [0, 1], 0) for name in "ab")
    recorder.issue(a, ALL_REDUCE, 8, SUM, 0, True)
    recorder.issue(b, ALL_REDUCE, 8, SUM, 0, False)
    with read(recorder) as ring:
        assert [event.in_order for event in ring.events(2)] == [True, False]
        assert len({event.prefix_hash for event in ring.events(2)}) == 1


def issue_on_host(recorder: Recorder, group: Group, numel: int) -> "weakref.ref[FakeWork]":
    """Issue an operation whose work only the recorder holds; returns whether it lives."""
    work = FakeWork()
    issued = recorder.issue(group, ALL_REDUCE, numel, SUM, 0)
    issued.on_host = True
    recorder.track(issued, work)
    return weakref.ref(work)


def test_a_work_outlives_its_group_for_a_while(recorder: Recorder, monkeypatch: pytest.MonkeyPatch):
    """gloo completes a future, and so wakes the trainer, before it says that the work is complete.

    Whoever destroys the group at once must not leave that work to gloo's thread: it would need the GIL to drop it,
    while the trainer, with the GIL, joins it.
    """
    group = recorder.add_group("0", "", [0, 1], 0)
    unfinished = issue_on_host(recorder, group, 8)
    recorder.forget_group("0")
    del group
    recorder.drain_all()
    assert unfinished() is not None
    monkeypatch.setattr("ncclwatch.rank.recorder.RETIRED_S", -1.0)
    recorder.drain_all()
    assert unfinished() is None


def test_of_many_groups_that_are_destroyed_at_once_only_the_newest_keep_their_works_and_so_their_connections(
    recorder: Recorder,
):
    works = []
    for name in map(str, range(FORGOTTEN_KEPT + 3)):
        works.append(issue_on_host(recorder, recorder.add_group(name, "", [0, 1], 0), 8))
        recorder.forget_group(name)
    assert [work() is not None for work in works] == [False] * 3 + [True] * FORGOTTEN_KEPT


def test_the_newest_finished_works_are_kept_however_large_and_older_ones_are_not(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    works = [issue_on_host(recorder, group, RETIRED_NUMEL_MAX) for _ in range(NEWEST_KEPT + 3)]
    for work in works:
        held = work()
        assert held is not None
        held.completed = True
    del held
    recorder.drain_all()
    assert [work() is not None for work in works] == [False] * 3 + [True] * NEWEST_KEPT


def test_the_timeout_of_a_group_is_kept_beside_its_frontier(recorder: Recorder):
    group = recorder.add_group("0", "", [0, 1], 0)
    assert read(recorder).groups()[0].timeout_ms == 0
    recorder.ring.limit_group(group.number, 7_200_000)
    recorder.issue(group, ALL_REDUCE, 8, SUM, 0)
    recorder.flag(group, Flag.ASYNC)
    row = read(recorder).groups()[0]
    assert (row.timeout_ms, row.enqueued, row.flags) == (7_200_000, 1, Flag.ASYNC)


def test_the_line_of_an_exception_has_the_whole_path_as_lines_of_operations_have(recorder: Recorder):
    """Python keeps the name of a program as it was given: `python train.py`."""
    program = compile("raise ValueError('bad label')", "train.py", "exec")
    with pytest.raises(ValueError) as raised:
        exec(program)
    assert describe_exception(raised.value, recorder.sites)["exc_file"] == str(Path("train.py").absolute())


def test_alike_functions_of_two_files_are_two_places(recorder: Recorder):
    source = "def f(recorder):\n    return recorder.sites.here(1)"
    one: dict[str, Callable[[Recorder], int]] = {}
    other: dict[str, Callable[[Recorder], int]] = {}
    exec(compile(source, "/made/one.py", "exec"), one)
    exec(compile(source, "/made/other.py", "exec"), other)
    sites = [made["f"](recorder) for made in (one, other)]
    files = [parse(read(recorder).string(site)) for site in sites]
    assert [found.file for found in files if found is not None] == ["/made/one.py", "/made/other.py"]
