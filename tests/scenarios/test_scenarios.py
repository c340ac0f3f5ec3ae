"""Each text in these folders is one situation and what the judge says of it; a folder is the cause that it says first.

`pytest tests/scenarios --rewrite` writes what it says now; read the diff before you believe it.
"""

from pathlib import Path

import pytest

from ncclwatch_server.judge import judge
from tests.scenarios.texts import FILES, SEPARATOR, folder_of, render, situation
from tests.scenarios.through_rings import through_rings


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_judge_says_what_the_scenario_expects(path: Path, request: pytest.FixtureRequest):
    given, _, expected = path.read_text().partition(SEPARATOR)
    said = render(judge(situation(given).snapshot()))
    if request.config.getoption("--rewrite"):
        path.write_text(given + SEPARATOR + said)
    assert said == expected or request.config.getoption("--rewrite")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_judge_says_the_same_of_ranks_whose_rings_were_written_and_read(path: Path):
    given, _, expected = path.read_text().partition(SEPARATOR)
    assert render(judge(through_rings(situation(given).snapshot()))) == expected


def test_there_are_scenarios_and_each_has_a_title():
    assert len(FILES) > 30
    assert all(path.read_text().startswith("# ") for path in FILES)


def test_each_scenario_lies_in_the_folder_of_the_cause_that_is_said_first():
    expected = [path.read_text().partition(SEPARATOR)[2] for path in FILES]
    assert [f"{path.parent.name}/{path.stem}" for path in FILES] == [
        f"{folder_of(said)}/{path.stem}" for path, said in zip(FILES, expected, strict=True)
    ]


def test_no_two_scenarios_have_one_name():
    assert len({path.name for path in FILES}) == len(FILES)
