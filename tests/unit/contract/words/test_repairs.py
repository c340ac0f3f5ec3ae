"""A smallest repair is told in words: what a rank did, what says that it was wrong, and what would have been."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Repair, RepairCall
from ncclwatch.contract.words.repairs import deed_words, instead_words, reference_words

SITE = CallSite(file="pipe.py", line=49, function="step")
SEND = RepairCall(op="send", group="pp", peer=2, site=SITE)
RECV = RepairCall(op="recv", group="pp", peer=-1, site=SITE)
BARRIER = RepairCall(op="barrier", group="dp", site=replace(SITE, line=60))
CAST = RepairCall(op="broadcast", group="dp", peer=0)


@pytest.mark.parametrize(
    ("change", "made", "missing", "deed", "instead"),
    [
        (
            "put in", (), (SEND,), "skipped send to rank 2 at pipe.py:49",
            "With send to rank 2 at pipe.py:49 on rank 3",
        ),
        (
            "leave out", (RECV,), (), "made recv at pipe.py:49, one call too many",
            "Without recv at pipe.py:49 on rank 3",
        ),
        (
            "leave out", (CAST, BARRIER), (),
            "made 2 calls (the first: broadcast of group dp with root 0) too many",
            "Without 2 calls (the first: broadcast of group dp with root 0) on rank 3",
        ),
        (
            "replace", (CAST,), (BARRIER,),
            "made broadcast of group dp with root 0 instead of barrier of group dp at pipe.py:60",
            "With barrier of group dp at pipe.py:60 instead of broadcast of group dp with root 0 on rank 3",
        ),
        (
            "swap", (CAST, SEND), (SEND, CAST),
            "made broadcast of group dp with root 0 before send to rank 2 at pipe.py:49 instead of after it",
            "In the reverse order on rank 3",
        ),
        ("rewind", (CAST,), (), "continued to broadcast of group dp with root 0 too early", ""),
        ("come back", (), (), "did not continue", ""),
    ],
)  # fmt: skip
def test_each_change_is_told(
    change: str, made: tuple[RepairCall, ...], missing: tuple[RepairCall, ...], deed: str, instead: str
) -> None:
    repair = Repair(rank=3, change=change, made=made, missing=missing)
    assert deed_words(repair) == deed
    assert instead_words(repair) == instead


def test_a_group_is_named_as_the_caller_names_it() -> None:
    repair = Repair(rank=3, change="put in", missing=(BARRIER,))
    assert deed_words(repair, lambda group: f"<{group}>") == "skipped barrier of <dp> at pipe.py:60"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Repair(rank=3, change="put in", reference="past", visits=212, held=212),
         "In 212 of the 212 times it reached this point before, it did not do so."),
        (Repair(rank=3, change="put in", reference="past", visits=212), ""),
        (Repair(rank=3, change="put in", reference="peers", peers=1),
         "The other rank that ran the same code did not do so."),
        (Repair(rank=3, change="put in", reference="peers", peers=7),
         "7 other ranks that ran the same code did not do so."),
        (Repair(rank=3, change="put in", reference="batches"),
         "It drew a different number of batches than the other ranks."),
        (Repair(rank=3, change="come back", reference="standing"), ""),
        (Repair(rank=3, change="put in"), ""),
    ],
)  # fmt: skip
def test_what_says_that_it_was_wrong_is_told(told: Repair, words: str) -> None:
    assert reference_words(told) == words


def test_of_a_call_that_a_rank_waits_in_it_is_open_whether_the_others_come_later() -> None:
    repair = Repair(rank=3, change="leave out", made=(BARRIER,), waits=True, reference="peers", peers=3)
    assert deed_words(repair).startswith("waits in barrier of group dp at pipe.py:60, while the other ranks wait")
    assert (instead_words(repair), reference_words(repair)) == ("Had rank 3 made the call of the other ranks", "")
