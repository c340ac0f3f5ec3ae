"""The page about each cause, as the server shows it: whole, and without a link that leads nowhere."""

import re

import pytest

from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.cause_pages import cause_of, page_of, slug_of
from ncclwatch_server.ui.causes import cause_html


@pytest.mark.parametrize("cause", list(Cause))
def test_each_cause_has_a_page_whose_links_lead_to_pages(cause: Cause):
    html = str(cause_html(cause))
    assert html.startswith("<h1>")
    assert "How to fix it" in html or "What to do" in html
    targets = re.findall(r'<a href="([^"]*)"', html)
    assert set(targets) <= {f"/causes/{slug_of(other)}" for other in Cause}
    assert html.count("<a ") == html.count("</a>") == len(targets)


def test_a_page_links_to_the_causes_it_speaks_of():
    assert "](straggler.md)" in page_of(Cause.PROCESS_FROZEN)
    assert '<a href="/causes/straggler">' in str(cause_html(Cause.PROCESS_FROZEN))


@pytest.mark.parametrize("word", ["process_frozen", "process-frozen", " Process frozen "])
def test_a_cause_is_found_by_its_name_however_it_is_written(word: str):
    assert cause_of(word) is Cause.PROCESS_FROZEN


def test_no_other_word_is_a_cause():
    assert cause_of("../../etc/passwd") is None
