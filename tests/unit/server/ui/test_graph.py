"""Boxes and arrows of "who waits for whom": who is one box, who points at whom, and that all lies in the picture."""

import re

import pytest

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Severity, Verdict, Waiters
from ncclwatch_server.ui.graph import BOXES_MAX, TEXT_CHARS_MAX, Drawing, drawing_of

A = CallSite(file="/job/train.py", line=97, function="step")
B = CallSite(file="/job/train.py", line=130, function="main")


def verdict(culprits: tuple[Culprit, ...], victims: tuple[int, ...], waiters: tuple[Waiters, ...] = ()) -> Verdict:
    return Verdict(
        cause=Cause.UNEVEN_BATCHES, certainty=Certainty.PROVEN, severity=Severity.CRITICAL, summary="", explanation="",
        advice="", culprits=culprits, victims=victims, op="all_reduce", waiters=waiters,
    )  # fmt: skip


def row(ranks: tuple[int, ...], awaits: tuple[int, ...], site: CallSite = A, doing: str = "all_reduce") -> Waiters:
    return Waiters(ranks=ranks, doing=doing, site=site, awaits=awaits)


def drawn(said: Verdict) -> Drawing:
    found = drawing_of(said)
    assert found is not None
    return found


def test_ranks_at_one_line_are_one_box_and_the_culprit_is_above_them():
    said = verdict((Culprit(rank=2),), (0, 1, 3), (row((0, 1, 3), (2,)), row((2,), (0, 1, 3), B, "barrier")))
    found = drawn(said)
    boxes = {box.who: box for box in found.boxes}
    assert set(boxes) == {"ranks 0-1,3", "rank 2"}
    assert boxes["rank 2"].blamed
    assert boxes["rank 2"].y < boxes["ranks 0-1,3"].y
    assert len(found.arrows) == 2  # each side waits for the other
    assert all(int(x) <= found.width for arrow in found.arrows for x in re.findall(r"[MC ](\d+) \d+", arrow))
    assert "ranks 0-1,3: all_reduce at train.py:97 in step(), waiting for rank 2." in found.sentences


def test_a_culprit_outside_of_every_operation_has_a_box_and_waits_for_nobody():
    found = drawn(verdict((Culprit(rank=7, doing="in sleep", call_site=B),), (0, 1), (row((0, 1), (7,)),)))
    assert len(found.arrows) == 1
    assert "rank 7: in sleep at train.py:130 in main()." in found.sentences


def test_ranks_of_one_line_that_wait_for_each_other_are_shown_one_by_one():
    pair = (row((0,), (1,), doing="recv from rank 1"), row((1,), (0,), doing="recv from rank 0"))
    same = tuple(Waiters(ranks=each.ranks, doing="recv", site=A, awaits=each.awaits) for each in pair)
    found = drawn(verdict((Culprit(rank=0), Culprit(rank=1)), (), same))
    assert sorted(box.who for box in found.boxes) == ["rank 0", "rank 1"]
    assert len(found.arrows) == 2


def test_a_verdict_of_an_older_version_is_drawn_by_culprits_and_victims():
    found = drawn(verdict((Culprit(rank=3, doing="gone"),), (0, 1, 2)))
    assert [box.who for box in found.boxes] == ["rank 3", "ranks 0-2"]
    assert len(found.arrows) == 1


def test_nothing_is_drawn_where_nobody_waits():
    assert drawing_of(verdict((Culprit(rank=3),), ())) is None


def test_a_big_picture_is_folded_and_the_culprit_stays_in_view():
    """Ranks of 16,384 that wait for rank 1001 through forty calls each, at four distances from it."""
    sites = [CallSite(file="/t.py", line=line, function="f") for line in range(160)]
    ahead = {0: (1001,)} | {
        distance: tuple(range(distance * 4000 - 4000, distance * 4000 - 3960)) for distance in (1, 2, 3)
    }
    rows = tuple(
        row((distance * 4000 + number,), ahead[distance], sites[distance * 40 + number])
        for distance in range(4)
        for number in range(40)
    )
    found = drawn(verdict((Culprit(rank=1001, doing="in sleep"),), (), rows))
    assert len(found.boxes) <= BOXES_MAX
    assert found.width <= 1200
    (culprit,) = [box for box in found.boxes if box.blamed]
    assert (culprit.who, culprit.y) == ("rank 1001", min(box.y for box in found.boxes))
    assert sum(len(box_ranks(box.title)) for box in found.boxes) == 161  # nobody is left out


def box_ranks(title: str) -> list[str]:
    return [one for part in title.split()[1].split(",") for one in expanded(part)]


def expanded(part: str) -> list[str]:
    first, _, last = part.partition("-")
    return [str(rank) for rank in range(int(first), int(last or first) + 1)]


@pytest.mark.parametrize("count", [2, 5, 40])
def test_everything_lies_inside_of_the_picture(count: int):
    sites = [CallSite(file="/t.py", line=line, function="f") for line in range(count)]
    rows = tuple(row((rank,), ((rank + 1) % count,), sites[rank]) for rank in range(count))
    found = drawn(verdict(tuple(Culprit(rank=rank) for rank in range(count)), (), rows))
    assert len(found.boxes) == min(count, BOXES_MAX)
    for box in found.boxes:
        assert 0 <= box.x <= found.width - 300
        assert 0 <= box.y <= found.height - 78
    for arrow in found.arrows:
        ends = [int(number) for number in re.findall(r"\d+", arrow)]
        assert max(ends) <= max(found.width, found.height)


def test_a_long_name_does_not_leave_its_box():
    long = CallSite(file="/job/" + "x" * 200 + ".py", line=1, function="y" * 100)
    (box, _) = drawn(verdict((Culprit(rank=1, call_site=long, doing="z" * 100),), (0,), (row((0,), (1,)),))).boxes
    assert max(len(box.place), len(box.doing)) <= TEXT_CHARS_MAX
    assert "x" * 200 in box.title
