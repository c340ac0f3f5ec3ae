"""`ncclwatch explain`: all causes, one cause, and what it says of a word that is none."""

import json

import pytest
from click.testing import CliRunner

from ncclwatch.cli.main import main
from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.cause_pages import page_of


def test_all_causes_are_listed_with_a_sentence():
    result = CliRunner().invoke(main, ["explain", "--text"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == [cause.value for cause in Cause]
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize("word", ["stuck_save", "stuck-save"])
def test_a_cause_is_explained(word: str):
    result = CliRunner().invoke(main, ["explain", word, "--text"])
    assert (result.exit_code, result.output) == (0, page_of(Cause.STUCK_SAVE))


def test_elsewhere_than_on_a_terminal_it_is_json():
    found = json.loads(CliRunner().invoke(main, ["explain", "stuck_save"]).output)
    assert (found["cause"], found["page"]) == ("stuck_save", page_of(Cause.STUCK_SAVE))
    assert len(json.loads(CliRunner().invoke(main, ["explain"]).output)["causes"]) == len(Cause)


def test_another_word_is_refused_with_what_to_type():
    result = CliRunner().invoke(main, ["explain", "gremlins"])
    assert result.exit_code == 2
    assert "ncclwatch explain` lists all of them" in result.output
