"""Each text in these folders is one situation and what the judge says of it; a folder is the cause that it says first.

`pytest tests/scenarios --rewrite` writes what it says now; read the diff before you believe it.
"""

import textwrap
from pathlib import Path

import pytest

from ncclwatch.contract.model.verdict import Verdict
from ncclwatch.contract.words.text import rank_list
from ncclwatch_server.judge import judge
from tests.scenarios.situation import Situation
from tests.scenarios.through_rings import through_rings

FILES = sorted(Path(__file__).parent.glob("*/*.txt"), key=lambda path: path.name)
SEPARATOR = "----\n"


def render(verdicts: tuple[Verdict, ...]) -> str:
    """Return verdicts as a scenario holds them."""
    if not verdicts:
        return "nothing\n"
    lines = []
    for verdict in verdicts:
        culprits = rank_list(culprit.rank for culprit in verdict.culprits)
        sites = sorted({str(c.call_site).split(" in ")[0] for c in verdict.culprits if c.call_site})
        one_of = " one of" if verdict.one_of else ""
        lines.append(
            f"{verdict.severity.value} {verdict.certainty.value} {verdict.cause.value}{one_of} "
            f"culprits={culprits or '-'} victims={rank_list(verdict.victims) or '-'} "
            f"explains={verdict.explained[0]}/{verdict.explained[1]} at={','.join(sites) or '-'}"
        )
        lines += textwrap.wrap(verdict.summary, 110, initial_indent="  ", subsequent_indent="  ")
        lines += textwrap.wrap(verdict.explanation, 110, initial_indent="  | ", subsequent_indent="  | ")
        if verdict.first_divergence is not None:
            found = verdict.first_divergence
            lines.append(f"  first: {found.group}#{found.seq} {found.fact}")
    return "\n".join(lines) + "\n"


def folder_of(said: str) -> str:
    """Return the folder in which a scenario belongs: the cause of its first verdict."""
    first = said.partition("\n")[0]
    return "healthy" if first == "nothing" else first.split()[2]


def situation(given: str) -> Situation:
    """Return what the commands of a scenario build up."""
    found = Situation()
    for line in given.splitlines():
        if line.strip() and not line.startswith("#"):
            found.run(line)
    return found


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
