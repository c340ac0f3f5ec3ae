"""The counters of groups without entries: paired in numeric order, and not believed where anything contradicts that."""

import pytest

from ncclwatch_server.offline.counters import lag_behind, paired

STATUS = {"2": (7, 7), "10": (9, 8), "0": (5, 4)}
NAMES = ("10", "9", "107")


def test_own_numbers_and_names_go_together_in_numeric_order():
    assert paired(NAMES, STATUS, {}) == {"9": (5, 4), "10": (7, 7), "107": (9, 8)}


def test_groups_with_entries_tell_for_themselves():
    assert paired(NAMES, STATUS, {"2": "10"}) == {"9": (5, 4), "107": (9, 8)}


def test_a_counter_that_was_never_set_is_none_of_anything():
    assert paired(["4"], {"0": (-1, -1)}, {}) == {"4": (0, 0)}


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        (("10", "9"), {}),
        (NAMES, {"2": "9"}),
        (NAMES, {"3": "9"}),
        (("10", "9", "a hash of the members"), {}),
    ],
    ids=["another length", "an entry contradicts", "an entry of an unknown number", "a name that is no number"],
)
def test_a_pairing_in_doubt_tells_nothing(names: tuple[str, ...], seen: dict[str, str]):
    assert paired(names, STATUS, seen) == {}


@pytest.mark.parametrize(
    ("ended", "unlisted_ended", "expected"),
    [
        ({"0": 5}, False, True),
        ({"0": 4, "2": 7, "10": 8}, False, False),
        ({"0": 4, "10": None}, True, False),
        ({"0": 4}, True, True),
        ({"0": 4}, False, False),
    ],
    ids=[
        "the list is ahead",
        "it is not",
        "sends count too",
        "nothing unfinished is listed",
        "it fell out of the list",
    ],
)
def test_a_rank_was_at_work_where_the_list_knows_more_than_the_counters(
    ended: dict[str, int | None], unlisted_ended: bool, expected: bool
):
    assert lag_behind(STATUS, ended, unlisted_ended=unlisted_ended) is expected
