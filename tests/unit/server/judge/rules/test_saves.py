"""What is told of a save, and which saves are warned of: each bound just below, at, and above."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import Ending, ProcessState, ProcessView, RankView, SaveView, ThreadView
from ncclwatch.contract.model.verdict import Cause, Verdict
from ncclwatch_server.judge.explanation import When
from ncclwatch_server.judge.rules.frames.saves import save_words
from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.judge.verdicts import warnings_of
from tests.unit.server.server_values import view


def save(**changes: object) -> SaveView:
    """Return a save under way to a file."""
    return replace(SaveView(call="torch.save", path="/m.pt", tid=1, began_s=9.0, identity="m"), **changes)  # type: ignore


def rank(number: int, *saves: SaveView, **changes: object) -> RankView:
    """Return a rank with these saves, the first of its main thread."""
    thread = ThreadView(tid=1, main=True, issued=1)
    return replace(view(number), threads=(thread,), saves=saves, **changes)  # type: ignore[arg-type]


def warned(*ranks: RankView) -> list[Verdict]:
    snapshot = JobSnapshot(job="job", world_size=4, ranks={each.rank: each for each in ranks}, stacks={}, silent={})
    return list(warnings_of(open_case(snapshot), When.NO_HANG))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "torch.save to /m.pt"),  # nobody knows how far it has come
        ({"path": ""}, "torch.save"),
        ({"written_bytes": 0}, "torch.save to /m.pt: 0 B written"),
        ({"written_bytes": 5, "bytes_per_s": 0.9}, "torch.save to /m.pt: 5 B written"),
        ({"written_bytes": 5, "bytes_per_s": 1.0}, "torch.save to /m.pt: 5 B written, 1 B/s"),
        ({"written_bytes": 5, "bytes_per_s": 9.0, "still_s": 2.9}, "torch.save to /m.pt: 5 B written, 9 B/s"),
        ({"written_bytes": 5, "bytes_per_s": 9.0, "still_s": 3.0}, "torch.save to /m.pt: 5 B written, none for 3.0 s"),
        ({"written_bytes": 5, "still_s": 2.9}, "torch.save to /m.pt: 5 B written"),
        ({"unanswered_s": 4.9}, "torch.save to /m.pt"),
        ({"unanswered_s": 5.0}, "torch.save to /m.pt (its file system has not answered for 5.0 s)"),
        ({"unanswered_s": 5.0, "refused": "disk full"}, "torch.save to /m.pt (disk full)"),
        ({"tid": 2}, ""),
        ({"ended_s": 1.0}, ""),
    ],
)
def test_what_is_told_of_a_save_under_way(changes: dict[str, object], said: str):
    assert save_words(rank(0, save(**changes))) == said


def test_nothing_is_told_of_the_saves_of_a_rank_whose_threads_nobody_saw():
    assert save_words(replace(rank(0, save()), threads=())) == ""


@pytest.mark.parametrize(
    ("changes", "conflict"),
    [
        ({}, True),
        ({"identity": "n"}, False),
        ({"identity": ""}, False),
        ({"appends": True}, False),
        ({"ended_s": 8.9}, True),
        ({"ended_s": 9.0}, False),  # one began when the other had ended
    ],
)
def test_two_ranks_in_one_file_at_one_time_tear_it(changes: dict[str, object], conflict: bool):
    found = warned(rank(0, save()), rank(1, save(began_s=20.0, **changes)))
    assert [each.cause for each in found] == ([Cause.CONFLICTING_SAVE] if conflict else [])


def test_two_threads_of_one_rank_are_that_ranks_own_affair():
    assert warned(rank(0, save(), save(tid=2))) == []


def seen(number: int, began_s: float, ended_s: float | None, **changes: object) -> RankView:
    return rank(number, save(began_s=began_s, ended_s=ended_s), **changes)


@pytest.mark.parametrize(
    ("changes", "conflict"),
    [
        ({}, True),  # of one moment: exact
        ({"host": "other"}, False),
        ({"news_age_s": 0.4}, False),
        ({"taken_s": 0.6}, False),
    ],
)
def test_times_of_two_views_are_compared_as_exactly_as_they_are_known(changes: dict[str, object], conflict: bool):
    """They overlap by a third of a second, and each view may be half a second older than it seems."""
    early, late = {"news_age_s": 0.2, "taken_s": 0.5}, {"news_age_s": 0.2, "taken_s": 0.5} | changes
    found = warned(seen(0, 4.0, 3.0, **early), seen(1, 3.3, 2.0, **late))
    assert bool(found) is conflict


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, True),
        ({"ending": Ending(kind="vanished")}, False),
        ({"process": ProcessView(state=ProcessState.GONE)}, False),
    ],
)
def test_a_save_that_death_broke_off_ended_nobody_knows_when(changes: dict[str, object], known: bool):
    assert bool(warned(rank(0, save()), rank(1, save(), **changes))) is known
    assert warned(rank(0, save()), rank(1, save(ended_s=1.0), **changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"refused": "the disk is full"}, True),
        ({}, False),
        ({"refused": "the disk is full", "began_s": 2.9}, False),
        ({"refused": "the disk is full", "began_s": 3.0}, True),
        ({"refused": "the disk is full", "written_bytes": 0, "still_s": 2.9}, False),
        ({"refused": "the disk is full", "written_bytes": 0, "still_s": 3.0}, True),
        ({"ended_s": 1.0, "refused": "the disk is full"}, False),  # it got through
        ({"ended_s": 1.0, "refused": "the disk is full", "error": "RuntimeError: x"}, True),
        ({"ended_s": 1.0, "error": "OSError: [Errno 28] No space left on device"}, True),
        ({"ended_s": 1.0, "error": "OSError: [Errno 2] x"}, False),
        ({"ended_s": 1.0, "error": "TypeError: cannot pickle a lock"}, False),
    ],
)
def test_a_save_that_storage_refuses_is_told_and_one_that_goes_on_is_not(changes: dict[str, object], told: bool):
    assert [each.cause for each in warned(rank(0, save(**changes)))] == ([Cause.FAILED_SAVE] if told else [])


@pytest.mark.parametrize(("free", "words"), [(-1, ""), (0, " 0 B are free there.")])
def test_how_much_is_free_is_told_where_it_is_known(free: int, words: str):
    (found,) = warned(rank(0, save(refused="the disk is full", free_bytes=free)))
    assert found.explanation.startswith(f"That save left no complete checkpoint.{words} Later")


def test_one_file_by_two_paths_is_told_with_both_and_its_inode():
    (found,) = warned(rank(0, save(inode=7)), rank(1, save(path="/link.pt", file="/m.tmp", filesystem="nfs4")))
    assert "(by 2 different paths, one of them /m.pt)" in found.summary
    facts = [each.fact for each in found.evidence if each.source == "proc"]
    assert facts == ["file /m.pt, inode 7", "file /m.tmp, inode 0 on nfs4"]


def test_one_path_is_told_once():
    (found,) = warned(rank(0, save()), rank(1, save()))
    assert "different paths" not in found.summary
    assert [each.source for each in found.evidence] == ["ring", "ring"]
