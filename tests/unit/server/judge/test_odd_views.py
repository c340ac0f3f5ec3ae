"""Views that no honest agent sends raise nothing."""

from dataclasses import replace

from ncclwatch_server.judge import judge
from tests.scenarios.texts import FILES, read


def test_a_rank_that_is_not_among_the_members_it_reports() -> None:
    (path,) = (each for each in FILES if each.stem == "pieces_two_still_at_two_lines")
    snapshot = read(path)[0].snapshot()
    view = snapshot.ranks[3]
    groups = tuple(replace(each, ranks=(2,)) for each in view.groups)
    judge(replace(snapshot, ranks={**snapshot.ranks, 3: replace(view, groups=groups)}))
