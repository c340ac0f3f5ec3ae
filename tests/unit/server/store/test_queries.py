"""Questions to the store hold nothing that a database refuses."""

from ncclwatch_server.incidents.pagination import Wanted
from ncclwatch_server.store.queries import wanted_rows


def test_no_text_that_is_searched_for_holds_a_nul():
    asked = wanted_rows(Wanted(text="a\0b", job="a\0b"), frozenset(), 1).compile().params
    assert [value for value in asked.values() if isinstance(value, str) and "\0" in value] == []
