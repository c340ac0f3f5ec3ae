"""What the words of a test of the rank tell of the members of a group."""

import pytest

from ncclwatch_server.judge.theory.histories.lines.rank_tests import asks_for_several, keeps_none_apart


@pytest.mark.parametrize(
    ("test", "caller", "ranks"),
    [
        ("rank < 2", 0, (0, 1)),
        ("if rank in (0, 2)", 0, (0, 2)),
        ("if 2 <= self.rank < 4", 2, (2, 3)),
        ("if dist.get_rank() in range(4)", 0, (0, 3)),
        ("if rank == 0: return", 4, (4, 5)),
        ("else of if rank == 0", 4, (4, 5)),
        ("if rank % 2 == 0 and step % 10 == 0", 0, (0, 2)),
        ("if rank < 2, else: return (line 3, where save() is called)", 0, (0, 1)),
        ("if not rank: continue", 4, (4, 5)),
        ("if step % 40 == 39 or (step == 105 and rank == 1)", 0, (0, 1, 2)),  # rank 0 came by the step, so all do
        ("if rank == 0 and not force: return", 0, (0, 1)),
    ],
)
def test_all_of_the_group_pass(test: str, caller: int, ranks: tuple[int, ...]):
    assert keeps_none_apart(test, caller, ranks)


@pytest.mark.parametrize(
    ("test", "caller", "ranks"),
    [
        ("if rank < 2", 0, (0, 1, 2)),
        ("if rank % 6 == 3", 3, (0, 3)),
        ("step != 2 or rank != 0", 1, (0, 1)),
        ("if rank == 0", 4, (4, 5)),  # counted within the group: rank 4 has passed it
        ("else of if rank < 4: return", 4, (4, 5)),
        ("if is_main_process()", 0, (0, 1)),
        ("if rank in loggers", 0, (0, 1)),
        ("if rank < 0.5", 0, (0, 1)),
        ("if rank // 0 == 1", 0, (0, 1)),
        ("match rank: case 0", 0, (0, 1)),
        ("@rank_zero_only", 0, (0, 1)),
        ("if step == 3", 0, (0, 1)),
        ("if step % 40 == 39 or (step == 105 and rank == 1)", 1, (0, 1, 2)),
        ("if rank == 0 or a or b or c or d or e or f or g", 1, (0, 1)),  # too many answers
    ],
)
def test_the_group_may_part_there(test: str, caller: int, ranks: tuple[int, ...]):
    assert not keeps_none_apart(test, caller, ranks)


@pytest.mark.parametrize(
    "test", ["if rank in members", "if rank < actors", "if rank % n == 0", "if rank not in some: return"]
)
def test_a_test_may_be_meant_for_several(test: str):
    assert asks_for_several(test)


@pytest.mark.parametrize(
    "test",
    ["if rank == src", "if rank == world_size - 1", "if rank < 2", "if is_main()", "@rank_zero_only"],
)
def test_a_test_is_meant_for_one_or_can_be_told(test: str):
    assert not asks_for_several(test)
