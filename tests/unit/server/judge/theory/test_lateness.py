"""How much time is left until a wait is given up, where the timeouts of some groups are not known."""

from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.judge.theory.lateness import time_left
from tests.scenarios.texts import situation

JOB = """
world 4
group a 0-1
group b 2-3
in 0 a#5 all_reduce train.py:44 for 50
in 2 b#5 all_reduce train.py:44 for 50
at 1,3 train.py:80
limit a 60
"""


def test_a_wait_whose_timeout_nobody_knows_leaves_the_time_of_the_others():
    case = open_case(situation(JOB).snapshot())
    zero, two = (case.graph.blocks[rank][0] for rank in (0, 2))
    assert time_left(case, [zero, two]) == (10.0, 60.0)
    assert time_left(case, [two]) == (0.0, 0.0)
