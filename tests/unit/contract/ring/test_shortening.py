"""Texts that are cut stay what they are: two with one beginning stay two, JSON stays JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclwatch.contract import config, job_names
from ncclwatch.contract.ring.shortening import short_json, short_name, short_text
from ncclwatch.rank.checks.preflight import Chain
from ncclwatch.rank.data.loaders import bucket_words
from ncclwatch_server.offline.flight_recorder import _config, _pair_of_names

LONG = "数" * 5_000
ALIKE = (LONG + "a", LONG + "b")


@given(st.text(max_size=300), st.integers(30, 200))
def test_a_text_that_fits_is_left_and_another_one_fits_afterwards(text: str, bytes_max: int):
    short = short_text(text, bytes_max)
    assert len(short.encode()) <= bytes_max
    assert short == text or len(text.encode(errors="replace")) > bytes_max or "\\ud8" in ascii(text)


@pytest.mark.parametrize("size", [config.NAME_BYTES_MAX - 1, config.NAME_BYTES_MAX])
def test_a_name_at_the_limit_is_left_as_it_is(size: int):
    assert short_name("n" * size) == "n" * size
    assert short_name("n" * (config.NAME_BYTES_MAX + 1)).startswith("nnnn")
    assert short_name("n" * (config.NAME_BYTES_MAX + 1)) != "n" * config.NAME_BYTES_MAX


@pytest.mark.parametrize(
    "shorten",
    [
        short_name,
        bucket_words,
        job_names.canonical,
        lambda text: _pair_of_names((text, "")),
        lambda text: tuple(_config({text: {"ranks": "[0]"}})),
        lambda text: _wrapped(text),
    ],
    ids=["group", "data bucket", "job", "group in a dump", "group in a dump's configuration", "parameter"],
)
def test_two_with_one_beginning_stay_two(shorten):
    one, other = map(shorten, ALIKE)
    assert one != other
    assert shorten(ALIKE[0]) == one


def _wrapped(name: str) -> list[str]:
    chain = Chain("DDP", "0-1")
    chain.add([(name, "float32 4")], ["/train.py", 1, "main"])
    return chain.parameters


TEXTS = st.recursive(
    st.text(max_size=400) | st.integers() | st.none(),
    lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x),
    max_leaves=12,  # of a hundred, making them takes the time
)


@given(st.dictionaries(st.text(max_size=8), TEXTS, max_size=6), st.integers(2, 600))
def test_what_is_cut_is_json_that_fits_or_nothing(found: dict[str, object], bytes_max: int):
    text = short_json(found, bytes_max)
    assert len(text) <= bytes_max
    assert text == "" or json.loads(text).keys() == found.keys()


def test_the_longest_texts_are_cut_and_the_others_stay():
    found = json.loads(short_json({"argv": "x" * 10_000, "job": "j", "cwd": "/" + "d" * 2_000}, 8_000))
    assert found["job"] == "j"
    assert found["argv"].startswith("xxx") and found["argv"].endswith("…")
    assert found["cwd"] == "/" + "d" * 2_000
