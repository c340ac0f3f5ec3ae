"""What the agent makes of a ring: rows of a digest each second, and whole views on request."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract import config, digests, wire
from ncclwatch.contract.groups import group_key, name_key
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.rank import CallSite, Ending, Op, PeerView, ProcessState, WaitKind
from ncclwatch.contract.ring import views
from ncclwatch.contract.ring.layout import Flag, Word
from ncclwatch.contract.ring.members import digest_of
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.views import Picture, pending_event
from ncclwatch.contract.wire import Loop
from ncclwatch.rank.operations import RECV, SEND, Group
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch_agent.ranks.jobs import JobKey, LocalJob
from ncclwatch_agent.ranks.rank_rows import LocalRank, sites_to_read

ALL_REDUCE = tuple(Op).index(Op.ALL_REDUCE)
NONE = (-1, 0, 0)
SITE = CallSite(file="/train.py", line=7, function="main")
S = 1_000_000_000
WORLD = group_key("0", digest_of(range(4)))


class Pending:
    """A work that is not complete."""

    def is_completed(self) -> bool:
        """Say so."""
        return False


class Writer:
    """A rank that writes a ring, as training would."""

    def __init__(self, path: Path) -> None:
        self.ring = RingFile(str(path), rank=3, local_rank=1, world=(4, 2), attempt=1)
        self.recorder = Recorder(self.ring)
        self.group = self.recorder.add_group("0", "default_pg", [0, 1, 2, 3], 0)
        self.site = self.ring.string("/train.py\x1f7\x1fmain")
        identity = {"job": "j", "instance": "i", "host": "node9", "server": "http://h:1"}
        self.ring.set_word(Word.IDENTITY, self.ring.string(json.dumps(identity)))

    def issue(self, count: int, *, done: bool, group: Group | None = None) -> None:
        """Issue all_reduces."""
        for _ in range(count):
            issued = self.recorder.issue(group or self.group, ALL_REDUCE, 8, (-1, 1, 1), self.site)
            self.recorder.track(issued, None if done else Pending())


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path / "3-1.ring")
    yield writer
    writer.ring.close()


@pytest.fixture
def rank(writer: Writer) -> Iterator[LocalRank]:
    rank = LocalRank(Ring(writer.ring.path))
    yield rank
    rank.close()


def picture(rank: LocalRank) -> Picture:
    """Return what the ring says now."""
    return Picture.of(rank.ring, time.monotonic_ns())


def row(rank: LocalRank, now_ns: int) -> dict[str, float]:
    """Return the digest row of a rank by name of field."""
    return dict(zip([name for name, _ in digests.RANK_FIELDS], rank.rows(now_ns)[0], strict=True))


def group_row(rank: LocalRank, now_ns: int) -> dict[str, float]:
    """Return the digest row of its first group by name of field."""
    return dict(zip([name for name, _ in digests.GROUP_FIELDS], rank.rows(now_ns)[1][0], strict=True))


def test_a_digest_row_says_who_where_and_how_far(writer: Writer, rank: LocalRank) -> None:
    writer.issue(3, done=True)
    writer.ring.set_word(Word.STEPS, 9)
    writer.ring.set_word(Word.INITIALISED, 1)
    now = time.monotonic_ns()
    writer.ring.set_word(Word.PULSE_NS, now - 2 * S)
    rank.observe(now)
    found = row(rank, now)
    assert (found["rank"], found["issued"], found["steps"], found["initialised"]) == (3, 3, 9, 1)
    assert (found["ended"], found["detached"], found["wait_age_s"]) == (0, 0, 0)
    assert found["pulse_age_s"] == pytest.approx(2.0)
    assert digests.PROCESS_STATES[int(found["state"])] in (ProcessState.RUNNING, ProcessState.SLEEPING)
    group = group_row(rank, now)
    assert (group["group"], group["enqueued"], group["unfinished"]) == (WORLD, 3, 0)
    assert group["prefix_hash"] == writer.group.prefix
    assert group["pending_age_s"] == 0
    assert len(digests.pack_digest(1, [tuple(found.values())], [tuple(group.values())])) > 0


def test_groups_of_one_name_and_other_members_are_told_by_other_keys(writer: Writer, rank: LocalRank) -> None:
    lists: list[list[int]] = [[2, 3], [3, 1], []]
    for number, ranks in enumerate(lists, 1):
        writer.recorder.add_group(f"{number}", "", ranks, 0)
    found = [(row[2], row[-1]) for row in rank.rows(time.monotonic_ns())[1]]
    digests = [digest_of(range(4)), digest_of([2, 3]), digest_of([3, 1]), 0]
    assert found == [(group_key(name, d), name_key(name)) for name, d in zip("0123", digests, strict=True)]


def test_the_age_of_the_oldest_unfinished_operation_outlives_newer_ones(writer: Writer, rank: LocalRank) -> None:
    writer.issue(5, done=True)
    writer.issue(1, done=False)
    oldest_ns = rank.ring.events(1)[0].time_ns
    assert group_row(rank, oldest_ns + 4 * S)["pending_age_s"] == pytest.approx(4.0)
    writer.issue(2, done=False)
    assert group_row(rank, oldest_ns + 6 * S)["pending_age_s"] == pytest.approx(6.0)


def test_while_a_group_moves_the_newest_operation_is_a_lower_bound(writer: Writer, rank: LocalRank) -> None:
    writer.issue(3, done=False)
    newest_ns = rank.ring.events(1)[0].time_ns
    assert group_row(rank, newest_ns + S)["pending_age_s"] == pytest.approx(1.0)
    oldest_ns = rank.ring.events(3)[0].time_ns
    assert group_row(rank, oldest_ns + 2 * S)["pending_age_s"] == 2.0


WAITS = [
    (WaitKind.STORE, 0, 5.0),
    (WaitKind.INIT, 0, 5.0),
    (WaitKind.DATA, 0, 0.0),
    (WaitKind.SAVE, 0, 0.0),
    (WaitKind.BACKWARD, 0, 0.0),
    (WaitKind.BACKWARD, 1, 5.0),
]


@pytest.mark.parametrize(("kind", "unfinished", "age_s"), WAITS)
def test_only_waits_that_peers_can_end_have_an_age(
    writer: Writer, rank: LocalRank, kind: WaitKind, unfinished: int, age_s: float
) -> None:
    writer.issue(unfinished, done=False)
    writer.recorder.enter(kind, writer.site)
    wait = rank.ring.threads()[0].wait
    assert wait is not None
    assert row(rank, wait.since_ns + 5 * S)["wait_age_s"] == pytest.approx(age_s, abs=0.1)


def test_backward_waits_no_longer_than_its_unfinished_operation(writer: Writer, rank: LocalRank) -> None:
    writer.recorder.enter(WaitKind.BACKWARD, writer.site)
    wait = rank.ring.threads()[0].wait
    assert wait is not None
    while time.monotonic_ns() < wait.since_ns + S // 20:
        pass
    writer.issue(1, done=False)
    issued_ns = rank.ring.events(1)[0].time_ns
    assert row(rank, issued_ns + S)["wait_age_s"] == pytest.approx(1.0)


def test_the_oldest_unfinished_operation_is_found_between_those_of_other_groups(
    writer: Writer, rank: LocalRank
) -> None:
    other = writer.recorder.add_group("tp", "tensor", [2, 3], 0)
    writer.issue(2, done=True)
    writer.issue(2, done=False)
    writer.issue(3, done=False, group=other)
    writer.recorder.issue(writer.group, SEND, 1, (2, 1, 0), writer.site)
    writer.issue(1, done=False)
    first, second = views.group_views(picture(rank))
    assert first.pending is not None and second.pending is not None
    assert (first.pending.seq, first.enqueued, first.completed) == (3, 5, 2)
    assert (second.name, second.desc, second.ranks, second.pending.seq) == ("tp", "tensor", (2, 3), 1)
    assert not second.destroyed


def test_an_operation_that_fell_out_of_the_ring_is_replaced_by_the_oldest_in_reach(
    writer: Writer, rank: LocalRank
) -> None:
    writer.issue(config.EVENTS_MAX + 10, done=True)
    writer.ring.set_group_done(0, 0, writer.group.newest_event)
    group = rank.ring.groups()[0]
    found = pending_event(rank.ring, group)
    assert found is not None
    assert found.seq == group.enqueued - views.PENDING_SCAN_MAX + 1


def test_history_says_which_operations_are_through(writer: Writer, rank: LocalRank) -> None:
    writer.recorder.count_batch(0, 5)
    writer.issue(1, done=True)
    writer.issue(1, done=False)
    done = writer.recorder.issue(writer.group, SEND, 4, (2, 1, 0), writer.site)
    writer.recorder.track(done, Pending())
    writer.group.peers[2][1][1] = 1
    writer.ring.set_peer(0, writer.group.peers[2][1])
    writer.recorder.issue(writer.group, RECV, 4, (2, 1, 0), writer.site)
    found = views.history(picture(rank))
    assert [(op.op, op.seq, op.completed) for op in found] == [
        (Op.ALL_REDUCE, 1, True),
        (Op.ALL_REDUCE, 2, False),
        (Op.SEND, 1, True),
        (Op.RECV, 1, False),
    ]
    assert (found[0].site, found[0].batch, found[0].loader, found[0].group) == (SITE, 5, 1, "0")
    assert (found[0].dtype, found[0].reduce_op, found[0].numel) == ("float32", "sum", 8)
    assert found[0].thread == rank.ring.threads()[0].tid
    assert found[2].peer == 2
    assert views.peer_views(picture(rank)) == (PeerView(group="0", peer=2, sends=1, sends_completed=1, recvs=1),)


def test_history_is_bounded(writer: Writer, rank: LocalRank) -> None:
    writer.issue(config.HISTORY_MAX + 3, done=True)
    found = views.history(picture(rank))
    assert (len(found), found[-1].seq) == (config.HISTORY_MAX, config.HISTORY_MAX + 3)


def test_a_thread_shows_its_wait_its_frames_and_the_exception_it_handles(writer: Writer, rank: LocalRank) -> None:
    now = time.monotonic_ns()
    writer.recorder.enter(WaitKind.NEW_GROUP, writer.site)
    sample: dict[str, object] = {
        "name": "MainThread", "leaf": "wait threading.py:1",
        "frames": [["/train.py", 7, "main"], ["/run.py", 2, "<module>"], ["broken"]],
        "exc": "ValueError: no", "exc_file": "/train.py", "exc_line": 5, "exc_function": "load",
    }  # fmt: skip
    writer.ring.set_sample(0, now - 9 * S, sample)
    writer.ring.set_word(Word.PULSE_NS, now - 2 * S)
    rank.observe(now)
    (thread,) = rank.view(now).threads
    assert thread.wait is not None
    assert (thread.wait.kind, thread.wait.site, thread.wait.group) == (WaitKind.NEW_GROUP, SITE, "")
    assert (thread.doing, thread.leaf, thread.main, thread.alive) == (SITE, "wait threading.py:1", True, True)
    assert thread.frames == (SITE, CallSite(file="/run.py", line=2, function="<module>"))
    assert (thread.exception, thread.exception_site) == (
        "ValueError: no", CallSite(file="/train.py", line=5, function="load"),
    )  # fmt: skip
    # The pulse stopped two seconds ago: what happened since then nobody saw.
    assert thread.same_s == pytest.approx(7.0)


@pytest.mark.parametrize(("issued", "exception"), [(3, "ValueError: no"), (2, "")])
def test_what_a_thread_was_in_before_its_newest_operation_is_not_told_as_present(
    writer: Writer, rank: LocalRank, issued: int, exception: str
) -> None:
    now = time.monotonic_ns()
    writer.issue(3, done=True)
    writer.recorder.enter(WaitKind.NEW_GROUP, writer.site)
    said: dict[str, object] = {"name": "MainThread", "leaf": "load train.py:5", "exc": "ValueError: no"}
    writer.ring.set_sample(0, now, {**said, "issued": issued})
    rank.observe(now)
    (thread,) = rank.view(now).threads
    assert (thread.name, thread.exception, bool(thread.leaf)) == ("MainThread", exception, bool(exception))


@pytest.mark.parametrize(
    ("said", "work"), [("compile", Phase.COMPILE), ("checkpoint", Phase.CHECKPOINT), ("dance", None), ([], None)]
)
def test_what_a_framework_does_on_a_stack_is_believed_only_if_it_is_known(
    writer: Writer, rank: LocalRank, said: object, work: Phase | None
) -> None:
    now = time.monotonic_ns()
    writer.recorder.enter(WaitKind.NEW_GROUP, writer.site)
    writer.ring.set_sample(0, now, {"work": said})
    rank.observe(now)
    assert rank.view(now).threads[0].work is work


def test_a_view_has_everything_the_ring_says(writer: Writer, rank: LocalRank) -> None:
    now = time.monotonic_ns()
    ring = writer.ring
    ring.set_word(Word.PHASE, ring.string("validate"))
    ring.set_word(Word.PHASE_NS, now - 3 * S)
    ring.set_word(Word.TIMEOUT_MS, 1_800_000)
    ring.set_word(Word.ENDPOINT, ring.string("h:29500"))
    ring.set_word(Word.DEVICE, ring.string("cuda:1"))
    loader = ring.add_loader(ring.string("/data.py\x1f3\x1fload"))
    ring.set_loader(loader, ring.string("/data.py\x1f3\x1fload"), 2, 40)
    ring.set_loader_counts(loader, 12, 2)
    ring.set_loader_last(loader, 12)
    ring.set_sample(config.THREADS_MAX, now - S, {"exc": "OSError: gone"})
    rank.observe(now)
    view = rank.view(now)
    assert (view.rank, view.local_rank, view.world_size, view.local_world_size, view.attempt) == (3, 1, 4, 2, 1)
    assert (view.host, view.pid, view.device) == ("node9", os.getpid(), "cuda:1")
    assert (view.phase, view.phase_s, view.timeout_s, view.endpoint) == ("validate", 3.0, 1800.0, "h:29500")
    assert (view.last_exception, view.last_exception_s) == ("OSError: gone", 1.0)
    (found,) = view.loaders
    assert (found.site.file, found.passes, found.drawn, found.exhausted) == ("/data.py", 2, 12, True)
    assert (found.last_drawn, found.length) == (12, 40)
    assert view.sites == (SITE, CallSite(file="/data.py", line=3, function="load"))
    assert wire.decode_from_agent(wire.encode(wire.Views(index=1, ranks=(view,)))) == wire.Views(index=1, ranks=(view,))


def test_a_loader_in_its_next_pass_is_not_exhausted(writer: Writer, rank: LocalRank) -> None:
    loader = writer.ring.add_loader(writer.site)
    writer.ring.set_loader(loader, writer.site, 3, 40)
    writer.ring.set_loader_counts(loader, 1, 2)
    assert not views.loader_views(picture(rank))[0].exhausted


def test_what_the_rank_said_of_its_end_counts_while_its_process_still_lives(writer: Writer, rank: LocalRank) -> None:
    now = time.monotonic_ns()
    note = {"kind": "crashed", "exit_code": 1, "exception": "ValueError: x", "file": "/train.py", "line": 7,
            "function": "main"}  # fmt: skip
    writer.ring.set_word(Word.ENDED_NS, now - 2 * S)
    writer.ring.set_word(Word.ENDED, writer.ring.string(json.dumps(note)))
    rank.observe(now)
    assert rank.ending == Ending(kind="crashed", exit_code=1, exception="ValueError: x", site=SITE, age_s=2.0)
    assert not rank.gone
    assert row(rank, now)["ended"] == 1


def test_a_rank_that_detached_is_reported_as_such(writer: Writer, rank: LocalRank) -> None:
    writer.ring.set_word(Word.DETACHED, 1)
    rank.observe(time.monotonic_ns())
    assert row(rank, time.monotonic_ns())["detached"] == 1


def test_sources_are_read_where_ranks_wait_before_what_they_did_earlier(writer: Writer, rank: LocalRank) -> None:
    now = time.monotonic_ns()
    for line in range(100, 140):
        site = writer.ring.string(f"/old.py\x1f{line}\x1ff")
        writer.recorder.track(writer.recorder.issue(writer.group, ALL_REDUCE, 1, NONE, site), None)
    writer.recorder.enter(WaitKind.STORE, writer.site)
    found = sites_to_read(rank.view(now))
    assert (found[0], found[1].line, len(found)) == (SITE, 139, config.SOURCES_MAX)
    assert len(set(found)) == len(found)


TEXTS = [
    ("/a.py\x1f3\x1ff", CallSite(file="/a.py", line=3, function="f")),
    ("/a.py\x1fx\x1ff", None),
    ("/a.py\x1f3", None),
    ("plain", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "site"), TEXTS)
def test_a_call_site_is_told_from_other_texts(text: str, site: CallSite | None) -> None:
    assert views.parse_site(text) == site


def test_what_a_device_waits_in_is_a_wait_wherever_the_host_stands(writer: Writer, rank: LocalRank):
    writer.issue(2, done=False)
    later_ns = time.monotonic_ns() + 5 * S
    assert row(rank, later_ns)["wait_age_s"] == 0.0
    writer.recorder.flag(writer.group, Flag.ASYNC)
    assert row(rank, later_ns)["wait_age_s"] > 4.0
    view = rank.view(later_ns).groups[0]
    assert (view.asynchronous, view.pending is not None and view.pending.seq) == (True, 1)


def test_where_nobody_knows_what_is_complete_nothing_is_pending(writer: Writer, rank: LocalRank):
    writer.recorder.flag(writer.group, Flag.ASYNC | Flag.BLIND)
    writer.issue(2, done=False)
    later_ns = time.monotonic_ns() + 5 * S
    assert (row(rank, later_ns)["wait_age_s"], group_row(rank, later_ns)["pending_age_s"]) == (0.0, 0.0)
    assert rank.view(later_ns).groups[0].pending is None


def test_a_group_that_is_made_again_has_a_name_of_its_own(writer: Writer, rank: LocalRank):
    """torch calls the new default group "0" as well; what others do in the old one is not to be compared with it."""
    writer.issue(5, done=True)
    writer.recorder.forget_group("0")
    again = writer.recorder.add_group("0", "default_pg", [0, 1, 2, 3], 0)
    writer.issue(1, done=False, group=again)
    view = rank.view(time.monotonic_ns())
    assert [(g.name, g.destroyed, g.enqueued) for g in view.groups] == [("0", True, 5), ("0~2", False, 1)]
    assert [op.group for op in view.history] == ["0"] * 5 + ["0~2"]
    _, rows = rank.rows(time.monotonic_ns())
    assert len({row[2] for row in rows}) == 2


def test_a_group_beside_a_new_default_group_is_told_by_that_one(writer: Writer, rank: LocalRank):
    """A rank that was in no group "1" before has the same name for the new one as a rank that was."""
    for name in ("0", "1", "0", "1", "1"):
        writer.recorder.add_group(name, "undefined", [0, 1], 0)
    names = [group.name for group in rank.view(time.monotonic_ns()).groups]
    assert names == ["0", "0~2", "1~2", "0~3", "1~3", "1~3.2"]


def waits(rank: LocalRank, now_ns: int) -> tuple[int, int, WaitKind | None]:
    """Return what the digest says of the wait of a rank: group, peer and kind."""
    found = row(rank, now_ns)
    code = int(found["wait_kind"])
    return int(found["waits_in"]), int(found["waits_for"]), digests.WAIT_KINDS[code] if code >= 0 else None


def test_a_digest_says_in_which_group_a_rank_waits_or_for_which_rank(writer: Writer, rank: LocalRank):
    assert waits(rank, time.monotonic_ns()) == (0, -1, None)
    issued = writer.recorder.issue(writer.group, ALL_REDUCE, 8, NONE, writer.site)
    outer = writer.recorder.enter(WaitKind.COLLECTIVE, writer.site, issued)
    assert waits(rank, time.monotonic_ns()) == (WORLD, -1, WaitKind.COLLECTIVE)
    writer.recorder.leave(outer)
    received = writer.recorder.issue(writer.group, RECV, 4, (2, 1, 0), writer.site)
    writer.recorder.enter(WaitKind.RECV, writer.site, received)
    assert waits(rank, time.monotonic_ns()) == (WORLD, 2, WaitKind.RECV)


def test_a_digest_of_a_rank_in_backward_or_on_a_device_names_the_oldest_unfinished_operation(
    writer: Writer, rank: LocalRank
):
    second = writer.recorder.add_group("1", "tp", [2, 3], 0)
    writer.issue(1, done=False, group=second)
    writer.issue(1, done=False)
    writer.recorder.enter(WaitKind.BACKWARD, writer.site)
    assert waits(rank, time.monotonic_ns()) == (group_key("1", digest_of([2, 3])), -1, WaitKind.COLLECTIVE)
    issued = writer.recorder.issue(writer.group, ALL_REDUCE, 8, NONE, writer.site)
    writer.recorder.enter(WaitKind.COLLECTIVE, writer.site, issued)
    assert waits(rank, time.monotonic_ns()) == (WORLD, -1, WaitKind.COLLECTIVE)
    writer.recorder.flag(writer.group, Flag.ASYNC)
    assert waits(rank, time.monotonic_ns()) == (group_key("1", digest_of([2, 3])), -1, WaitKind.COLLECTIVE)


def test_a_digest_of_a_rank_in_a_rendezvous_names_no_group(writer: Writer, rank: LocalRank):
    writer.recorder.enter(WaitKind.INIT, writer.site)
    assert waits(rank, time.monotonic_ns()) == (0, -1, WaitKind.INIT)


def test_the_loop_of_a_rank_has_its_line_pass_counts_and_buckets(writer: Writer, rank: LocalRank):
    assert rank.loop(time.monotonic_ns()) is None
    this = writer.recorder.loaders.begin([0] * 9, 0)
    for shape in ((8, 3), (8, 5), (8, 3)):
        writer.recorder.count_drawn(this, shape, lambda bucket: bucket)

    loop = rank.loop(time.monotonic_ns())

    assert loop is not None
    assert loop.loader.startswith(__file__)
    assert (loop.rank, loop.number, loop.drawn, loop.length, loop.ended, loop.even) == (3, 1, 3, 9, False, False)
    assert loop.buckets == (("8x3", 2), ("8x5", 1))
    assert views.loader_views(picture(rank))[0].buckets == loop.buckets

    writer.recorder.loaders.end(this)
    function = "test_the_loop_of_a_rank_has_its_line_pass_counts_and_buckets"
    ended = rank.loop(time.monotonic_ns())
    assert ended is not None
    assert [(name, timed) for name, timed, _ in ended.costs] in ([("8x3", 1), ("8x5", 1)], [("8x5", 1), ("8x3", 1)])
    assert ended == Loop(3, loop.loader, 1, 3, 9, True, False, loop.buckets, function, ended.costs)


def test_a_server_is_told_of_loops_that_begin_or_end_and_now_and_then(writer: Writer, rank: LocalRank):
    job = LocalJob(JobKey.of(rank), 1, rank)
    job.add(rank)
    told = []
    this = writer.recorder.loaders.begin([0] * 9, 0)
    for now_s in (100.0, 101.0, 104.9, 105.0, 106.0):
        writer.recorder.count_drawn(this, None)
        told.append(job.loops(int(now_s * 1e9)))
    writer.recorder.loaders.end(this)
    told.append(job.loops(int(107e9)))

    assert [loops.ranks[0].drawn if loops else None for loops in told] == [1, None, None, 4, None, 5]


def test_a_save_that_ended_since_the_last_tick_is_not_told_as_under_way(
    rank: LocalRank, writer: Writer, tmp_path: Path
):
    said = {"call": "torch.save", "path": str(tmp_path / "model.pt")}
    began_ns = time.monotonic_ns()
    writer.recorder.thread()
    writer.ring.set_save(0, (began_ns, 0), writer.site, said)
    rank.observe(time.monotonic_ns())
    writer.ring.set_save(0, (began_ns, time.monotonic_ns()), writer.site, said)
    (save,) = rank.view(time.monotonic_ns()).saves
    assert save.ended_s is not None
    assert save.began_s > save.ended_s
    assert (save.call, save.path, str(save.site)) == ("torch.save", said["path"], "train.py:7 in main()")


def test_a_save_that_begins_while_a_view_is_taken_overlaps_with_nothing(rank: LocalRank, writer: Writer):
    now_ns = time.monotonic_ns()
    writer.recorder.thread()
    writer.ring.set_save(0, (now_ns + 1000, 0), writer.site, {"call": "torch.save", "path": "/x"})
    (save,) = rank.view(now_ns).saves
    assert (save.began_s, save.ended_s) == (0.0, None)
