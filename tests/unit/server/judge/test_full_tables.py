"""A rank whose ring had no room for a group, a peer or a thread is not blamed for what is missing there."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import GroupView, Op, ProcessState, ProcessView, RankView, WaitKind
from ncclwatch.contract.model.verdict import Certainty, Severity, Verdict
from ncclwatch.contract.ring.layout import OPS, Word
from ncclwatch_server.judge import judge
from ncclwatch_server.judge.theory.waits.full_tables import may_have_entered
from ncclwatch_server.judge.theory.waits.rank_standing import Operation
from ncclwatch_server.simulation.hearing import arrived
from ncclwatch_server.simulation.rings import SimulatedRing
from tests.unit.server.server_values import view

ALL_REDUCE, SEND, RECV = (OPS.index(op) for op in (Op.ALL_REDUCE, Op.SEND, Op.RECV))
WORLD, LONG_S = 1024, 400.0
Write = Callable[[SimulatedRing, int], None]


class Work:
    """One that does not end."""

    def is_completed(self) -> bool:
        return False


def seen(ranks: range, write: Write) -> tuple[Verdict, ...]:
    """Return what is said of ranks that have stood for long after each has written what it did into its ring."""
    with ExitStack() as stack:
        views = tuple(stack.enter_context(written(rank, write)) for rank in ranks)
    found = {view.rank: view for view in arrived(views)}
    return judge(JobSnapshot(job="job", world_size=len(ranks), ranks=found, stacks={}, silent={}, absent_s=3600.0))


@contextmanager
def written(rank: int, write: Write) -> Iterator[RankView]:
    with SimulatedRing(rank=rank, local_rank=rank, world=(4, 4)) as ring:
        ring.say(Word.IDENTITY, '{"host": "n0"}')
        ring.file.set_word(Word.INITIALISED, 1)
        ring.turn_back(LONG_S)
        ring.add_thread(threading.get_native_id(), main=True)
        write(ring, rank)
        ring.beat(0.2)
        row_ns = ring.turn_back(LONG_S)
        ring.file.set_sample(0, row_ns, {"leaf": "f t.py:1", "name": "MainThread"})
        still = ProcessView(state=ProcessState.SLEEPING, cpu_still_s=LONG_S, io_still_s=LONG_S)
        seen = ring.view()
        threads = tuple(replace(each, cpu_still_s=LONG_S, alive=True) for each in seen.threads)
        yield replace(seen, pid=1000 + rank, process=still, threads=threads)


def collective(ring: SimulatedRing, name: str) -> None:
    """Enter a collective of a group, and wait in it."""
    issued = ring.recorder.issue(ring.recorder.groups[name], ALL_REDUCE, 1, (-1, 1, 1), 0)
    ring.recorder.track(issued, Work())
    ring.recorder.enter(WaitKind.COLLECTIVE, 0, issued)


def blamed(said: tuple[Verdict, ...]) -> list[tuple[int, ...]]:
    """Return whom the verdicts accuse that would wake somebody."""
    return [tuple(c.rank for c in each.culprits) for each in said if each.severity is Severity.CRITICAL]


def others(count: int, comes: bool) -> Write:
    """Return a job in which all wait in group tp; rank 3 was in so many groups before, and waits there or in none."""

    def write(ring: SimulatedRing, rank: int) -> None:
        for number in range(count if rank == 3 else 0):
            ring.recorder.add_group(f"g{number}", "", [3], 0)
        ring.recorder.add_group("tp", "tp", [0, 1, 2, 3], 0)
        if comes or rank != 3:
            collective(ring, "tp")

    return write


@pytest.mark.parametrize("count", [config.GROUPS_MAX - 2, config.GROUPS_MAX - 1])
def test_a_member_that_has_not_come_is_blamed_while_its_ring_has_room_for_the_group(count: int):
    assert blamed(seen(range(4), others(count, comes=False))) == [(3,)]


@pytest.mark.parametrize("comes", [True, False])
def test_a_member_whose_ring_has_no_room_for_the_group_is_not_blamed(comes: bool):
    said = seen(range(4), others(config.GROUPS_MAX, comes))
    assert blamed(said) == []
    assert "whether rank 3 has entered is not known" in said[0].summary
    assert said[0].certainty is Certainty.LATE


def receives(peers: int, sends: bool) -> Write:
    """Return a job in which rank 0 waits for a message of rank 1, which has sent to so many others before."""

    def write(ring: SimulatedRing, rank: int) -> None:
        group = ring.recorder.add_group("pp", "pp", range(WORLD), 0)
        if rank == 0:
            issued = ring.recorder.issue(group, RECV, 1, (1, 1, 0), 0)
            ring.recorder.track(issued, Work())
            ring.recorder.enter(WaitKind.RECV, 0, issued)
            return
        for peer in range(2, 2 + peers):
            ring.recorder.issue(group, SEND, 1, (peer, 1, 0), 0)
        if sends:
            ring.recorder.issue(group, SEND, 1, (0, 1, 0), 0)

    return write


@pytest.mark.parametrize("peers", [config.PEERS_MAX - 1, config.PEERS_MAX])
def test_a_rank_that_has_not_sent_is_blamed_while_its_ring_has_room_for_its_peers(peers: int):
    assert blamed(seen(range(2), receives(peers, sends=False))) == [(1,)]


@pytest.mark.parametrize("peers", [config.PEERS_MAX - 1, config.PEERS_MAX])
def test_a_rank_that_has_sent_is_not_blamed_whether_or_not_its_ring_had_room_to_say_so(peers: int):
    assert (1,) not in blamed(seen(range(2), receives(peers, sends=True)))


def circle(threads: int) -> Write:
    """Return a job in which two ranks wait for each other, in two groups; each has so many more threads."""

    def write(ring: SimulatedRing, rank: int) -> None:
        for name in ("a", "b"):
            ring.recorder.add_group(name, name, [0, 1], 0)
        with alive(threads) as tids:  # rows of threads that have ended are taken over
            for tid in tids:
                ring.file.add_thread(tid, False)
        collective(ring, "ab"[rank])

    return write


@contextmanager
def alive(count: int) -> Iterator[list[int]]:
    """Return the ids of so many threads, which live meanwhile."""
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield [thread.native_id or 0 for thread in threads]
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("threads", [config.THREADS_MAX - 2, config.THREADS_MAX - 1])
def test_a_circle_is_proven_while_all_threads_have_rows(threads: int):
    (said,) = seen(range(2), circle(threads))
    assert said.certainty is Certainty.PROVEN


def test_a_circle_is_not_proven_when_a_thread_that_has_no_row_may_let_it_go():
    said = seen(range(2), circle(config.THREADS_MAX))
    assert Certainty.PROVEN not in {each.certainty for each in said}


@pytest.mark.parametrize(("kind", "perhaps"), [(WaitKind.NEW_GROUP, True), (WaitKind.INIT, False)])
def test_a_group_without_a_row_may_be_one_that_the_others_still_make_and_is_no_rendezvous(
    kind: WaitKind, perhaps: bool
):
    of_itself = GroupView(name="g", desc="", ranks=(3,), enqueued=0, completed=0, prefix_hash=0)
    full = replace(view(3), groups=(of_itself,) * config.GROUPS_MAX, dropped=1)
    assert may_have_entered(full, Operation(group="", seq=1, members=(0, 3), kind=kind)) is perhaps
