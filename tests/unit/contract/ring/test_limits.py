"""Below, at and above each limit of a ring: what is beyond it is counted, and nothing else is made of it."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.call_sites import SiteText, write
from ncclwatch.contract.ring.layout import OPS, SAMPLE_TEXT_MAX, SAVE_TEXT_MAX
from ncclwatch.rank.operations import NO_ROW
from ncclwatch.rank.pulse import Pulse
from ncclwatch_server.simulation.rings import SimulatedRing

ALL_REDUCE, SEND = OPS.index(Op.ALL_REDUCE), OPS.index(Op.SEND)


@pytest.fixture
def ring() -> Iterator[SimulatedRing]:
    with SimulatedRing(rank=0, local_rank=0, world=(1024, 8)) as opened:
        yield opened


def in_a_thread(task: Callable[[], object]) -> None:
    """Let a thread do something and end."""
    thread = threading.Thread(target=task)
    thread.start()
    thread.join()


def issue(ring: SimulatedRing, group: str = "0", site: int = 0) -> None:
    ring.recorder.track(ring.recorder.issue(ring.recorder.groups[group], ALL_REDUCE, 1, (-1, 1, 1), site), None)


@pytest.mark.parametrize("count", [config.GROUPS_MAX - 1, config.GROUPS_MAX, config.GROUPS_MAX + 1])
def test_as_many_groups_as_there_are_rows_are_read_and_one_more_is_counted(ring: SimulatedRing, count: int):
    names = [str(number) for number in range(count)]
    for name in names:
        ring.recorder.add_group(name, "", [0, 1], 0)
        issue(ring, name)
    view = ring.view()
    assert [group.name for group in view.groups] == names[: config.GROUPS_MAX]
    assert {group.ranks for group in view.groups} == {(0, 1)}
    assert view.dropped == max(0, count - config.GROUPS_MAX)
    assert [op.group for op in view.history][-1] == (names[-1] if count <= config.GROUPS_MAX else "")


def test_a_wait_in_a_group_beyond_the_table_is_still_a_wait(ring: SimulatedRing):
    for number in range(config.GROUPS_MAX + 1):
        ring.recorder.add_group(str(number), "", [0, 1], 0)
    ring.add_thread(1, main=True)
    issued = ring.recorder.issue(ring.recorder.groups[str(config.GROUPS_MAX)], ALL_REDUCE, 1, (-1, 1, 1), 0)
    ring.recorder.enter(WaitKind.COLLECTIVE, 0, issued)
    wait = ring.view().threads[0].wait
    assert wait is not None
    assert (wait.kind, wait.group, wait.seq) == (WaitKind.COLLECTIVE, "", 1)


@pytest.mark.parametrize("count", [config.PEERS_MAX - 1, config.PEERS_MAX, config.PEERS_MAX + 1])
def test_as_many_peers_as_there_are_rows_are_read_and_one_more_is_counted(ring: SimulatedRing, count: int):
    group = ring.recorder.add_group("0", "", range(1024), 0)  # type: ignore[arg-type]
    for peer in range(1, count + 1):
        ring.recorder.issue(group, SEND, 1, (peer, 1, 0), 0)
    view = ring.view()
    assert [(peer.peer, peer.sends) for peer in view.peers] == [
        (peer, 1) for peer in range(1, min(count, config.PEERS_MAX) + 1)
    ]
    assert view.dropped == max(0, count - config.PEERS_MAX)


@pytest.mark.parametrize("count", [config.LOADERS_MAX - 1, config.LOADERS_MAX, config.LOADERS_MAX + 1])
def test_as_many_loaders_as_there_are_rows_are_read_and_one_more_is_counted(ring: SimulatedRing, count: int):
    rows = [ring.file.add_loader(ring.file.string(write(SiteText("/t.py", line, "f")))) for line in range(1, count + 1)]
    view = ring.view()
    assert [loader.site.line for loader in view.loaders] == list(range(1, min(count, config.LOADERS_MAX) + 1))
    assert (rows[-1] == -1, view.dropped) == (count > config.LOADERS_MAX, max(0, count - config.LOADERS_MAX))


@pytest.mark.parametrize("others", [config.THREADS_MAX - 2, config.THREADS_MAX - 1, config.THREADS_MAX])
def test_threads_that_live_have_rows_as_far_as_there_are_and_one_more_is_counted(ring: SimulatedRing, others: int):
    ring.recorder.add_group("0", "", [0, 1], 0)
    issue(ring)
    met, over = threading.Barrier(others + 1), threading.Event()

    def live() -> None:
        issue(ring)
        issue(ring)
        met.wait(10)
        over.wait(10)

    threads = [threading.Thread(target=live) for _ in range(others)]
    for thread in threads:
        thread.start()
    met.wait(10)
    view = ring.view()
    over.set()
    for thread in threads:
        thread.join()
    assert len(view.threads) == min(others + 1, config.THREADS_MAX)
    assert view.dropped == max(0, others + 1 - config.THREADS_MAX)
    assert {op.thread for op in view.history} - {thread.tid for thread in view.threads} == (
        {0} if others == config.THREADS_MAX else set()
    )


def _twice(tids: Iterable[int]) -> list[int]:
    return [tid for tid in tids for _ in range(2)]


def test_threads_that_have_ended_make_room_for_others(ring: SimulatedRing):
    ring.recorder.add_group("0", "", [0, 1], 0)
    issue(ring)
    for _ in range(3 * config.THREADS_MAX):
        in_a_thread(lambda: issue(ring))
    tids: list[int] = []
    rows: list[int] = []

    def wait() -> None:
        tids.append(threading.get_native_id())
        rows.append(ring.recorder.thread().row)
        ring.recorder.enter(WaitKind.SAVE)
        view = ring.view()
        assert [thread.tid for thread in view.threads if thread.wait is not None] == tids
        assert view.threads[0].main

    in_a_thread(wait)
    assert rows != [NO_ROW]
    assert ring.view().dropped == 0


def test_a_thread_that_got_the_row_of_another_has_nothing_of_what_that_one_said(ring: SimulatedRing):
    ring.recorder.add_group("0", "", [0, 1], 0)

    def wait() -> None:
        row = ring.recorder.thread().row
        ring.recorder.enter(WaitKind.SAVE)
        ring.file.set_sample(row, 1, {"leaf": "f t.py:1"})
        ring.file.set_save(row, (1, 0), 0, {"call": "torch.save", "path": "/x"})

    for _ in range(config.THREADS_MAX):
        in_a_thread(wait)
    in_a_thread(lambda: issue(ring))
    newest, *others = sorted(ring.view().threads, key=lambda thread: -thread.issued)
    assert (newest.wait, newest.leaf, newest.issued) == (None, "", 1)
    assert {(other.leaf, other.issued) for other in others} == {("f t.py:1", 0)}


def test_operations_of_a_thread_that_has_ended_are_not_those_of_the_one_that_got_its_row(ring: SimulatedRing):
    ring.recorder.add_group("0", "", [0, 1], 0)
    tids: list[int] = []

    def work() -> None:
        tids.append(threading.get_native_id())
        issue(ring)
        issue(ring)

    for _ in range(3 * config.THREADS_MAX):
        in_a_thread(work)
    view = ring.view()
    known = {thread.tid for thread in view.threads}
    assert {op.thread for op in view.history[-2:]} == {tids[-1]}
    assert all(op.thread in {0, tid} for op, tid in zip(reversed(view.history), _twice(reversed(tids)), strict=False))
    assert max(Counter(op.thread for op in view.history if op.thread in known).values()) == 2


def test_the_pulse_takes_no_thread_for_the_one_that_had_its_row_before(tmp_path: Path, ring: SimulatedRing):
    """Two threads that do the same look alike: the second would seem to stand there since the first came."""
    pulse = Pulse(ring.recorder, str(tmp_path), first=False, witness="", warn=print)
    stands, over, rows = threading.Event(), threading.Event(), []

    def stand() -> None:
        rows.append(ring.recorder.thread().row)
        stands.set()
        over.wait(10)

    thread = threading.Thread(target=stand)
    thread.start()
    stands.wait(10)
    looks = [since_after(pulse, ring, rows[0]) for _ in range(3)]
    ring.file._take_over(rows[0], (12).to_bytes(4, "little") + bytes(12))
    looks += [since_after(pulse, ring, rows[0]) for _ in range(3)]
    over.set()
    thread.join()
    assert looks[1] == looks[2] > looks[0] == looks[3] == 0
    assert looks[4] == looks[5] > looks[2]


def test_a_thread_that_the_pulse_never_sees_at_rest_is_known_by_its_name(ring: SimulatedRing):
    """Two threads that use one group without a pause are told apart by their names alone."""
    ring.recorder.add_group("0", "", [0, 1], 0)
    thread = threading.Thread(target=lambda: issue(ring), name="metrics")
    thread.start()
    thread.join()
    (found,) = ring.view().threads
    assert (found.name, found.frames) == ("metrics", ())


def since_after(pulse: Pulse, ring: SimulatedRing, row: int) -> int:
    """Let the pulse look at the threads, and return since when one stands where it does, 0 if it was not looked at."""
    pulse._look_at_threads()
    found = ring.reader.sample(row)
    return found[0] if found is not None else 0


def test_when_the_table_of_strings_is_full_lines_are_unknown_and_counts_go_on(ring: SimulatedRing):
    ring.recorder.add_group("0", "", [0, 1], 0)
    lines = [ring.file.string(write(SiteText(f"/{'x' * 900}/t{n}.py", 1, "f"))) for n in range(400)]
    for line in lines:
        issue(ring, site=line)
    view = ring.view()
    known = sum(map(bool, lines))
    assert 0 < known < 400
    assert view.dropped == 400 - known
    assert [op.site is None for op in view.history] == [not line for line in lines]
    assert (view.groups[0].name, view.groups[0].enqueued) == ("0", 400)


def test_more_operations_than_there_are_slots_leave_the_newest(ring: SimulatedRing):
    ring.recorder.add_group("0", "", [0, 1], 0)
    for _ in range(config.EVENTS_MAX + 3):
        issue(ring)
    view = ring.view()
    assert [op.seq for op in view.history] == list(
        range(config.EVENTS_MAX + 4 - config.HISTORY_MAX, config.EVENTS_MAX + 4)
    )
    assert view.groups[0].completed == config.EVENTS_MAX + 3


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_sample_that_is_too_long_is_cut_and_takes_the_place_of_the_one_before(ring: SimulatedRing, more: int):
    """Were the one before left there, the thread would seem to stand where it stood long ago."""
    row = ring.add_thread(1, main=True)
    ring.file.set_sample(row, 1, {"leaf": "before t.py:1", "frames": [["/t.py", 1, "before"]]})
    empty = len(json.dumps({"leaf": ""}, separators=(",", ":")))
    ring.file.set_sample(row, ring.beat(0.0), {"leaf": "x" * (SAMPLE_TEXT_MAX - empty + more)})
    view = ring.view()
    assert view.threads[0].frames == ()
    assert view.threads[0].same_s == 0.0
    assert view.threads[0].leaf.startswith("xxx")
    assert view.dropped == (more > 0)


@pytest.mark.parametrize("chars", [10, SAVE_TEXT_MAX, 10_000])
def test_a_save_whose_error_is_long_stays_in_its_own_row(ring: SimulatedRing, chars: int):
    rows = [ring.add_thread(tid, main=tid == 1) for tid in (1, 2)]
    for row in rows:
        ring.file.set_save(row, (1, 0), 0, {"call": "torch.save", "path": f"/{row}", "error": "e" * chars * (row == 0)})
    ring.file.set_save(rows[0], (1, 2), 0, {"call": "torch.save", "path": "/0", "error": "e" * chars})
    first, second = ring.reader.saves()
    assert (first.call, second.call, second.path) == ("torch.save", "torch.save", "/1")
    assert first.error.startswith("eee")


def test_nothing_is_left_of_a_simulated_ring(ring: SimulatedRing):
    assert not Path(ring.file.path).parent.exists()
    assert ring.view().dropped == 0
