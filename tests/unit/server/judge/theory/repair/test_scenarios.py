"""Each scenario is searched without an error, and where the smallest repair and the judge are certain they agree."""

from pathlib import Path

import pytest

from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge import judge
from ncclwatch_server.judge.theory.repair.edits import Change
from ncclwatch_server.judge.theory.repair.findings import find
from ncclwatch_server.judge.theory.repair.tapes import read
from ncclwatch_server.judge.theory.waits.rank_standing import standings
from tests.scenarios.texts import FILES, SEPARATOR, situation


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_certain_repair_is_of_a_rank_that_the_judge_has_proven_to_be_a_culprit(path: Path) -> None:
    snapshot = situation(path.read_text().partition(SEPARATOR)[0]).snapshot()
    finding = find(read(standings(snapshot)))
    told = {suspect.rank for suspect in finding.suspects}
    back = {each.rank for each in finding.suspects if each.change is Change.COME_BACK}
    if any(snapshot.ranks[rank].ending is None for rank in back):
        return  # it may be at work, and the judge does not name it
    proven = [each for each in judge(snapshot) if each.certainty is Certainty.PROVEN]
    culprits = [{culprit.rank for culprit in each.culprits} for each in proven]
    assert not finding.certain or not proven or any(told <= ranks for ranks in culprits)


def test_the_smallest_repair_is_certain_in_some_scenarios() -> None:
    snapshots = (situation(path.read_text().partition(SEPARATOR)[0]).snapshot() for path in FILES)
    assert sum(find(read(standings(snapshot))).certain for snapshot in snapshots) > 50
