"""Real ranks that loop over even_batches end together, whatever their loaders do."""

import json
from pathlib import Path

import pytest

from tests.integration.launch import run_ranks

pytestmark = pytest.mark.integration


def _ranks(count: int, runtime: Path, seed: int) -> list[list[list[object]]]:
    ranks = run_ranks("even.py", count, runtime, str(seed))
    assert [rank.code for rank in ranks] == [0] * count, "\n".join(rank.err for rank in ranks)
    return [json.loads(rank.out.splitlines()[-1]) for rank in ranks]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[list[list[object]]]:
    return _ranks(2, tmp_path_factory.mktemp("ring"), 1)


def _said(found: list[list[object]], what: str) -> list[list[object]]:
    return [rest for name, *rest in found if name == what]


def _check_epochs(ranks: list[list[list[object]]]) -> None:
    for epoch in range(6):
        said = [_said(found, f"epoch {epoch}") for found in ranks]
        least = min(length for (length,), _ in said)
        assert [got for _, (got,) in said] == [least] * len(ranks)


def test_two_ranks_get_as_many_batches_as_the_poorer_has(pair):
    _check_epochs(pair)


def test_three_ranks_get_as_many_batches_as_the_poorest_has(tmp_path: Path):
    _check_epochs(_ranks(3, tmp_path, 2))


def test_without_a_process_group_the_loader_is_iterated_over_as_it_is(pair):
    assert [_said(found, "alone") for found in pair] == [[[3]]] * 2


def test_workers_that_live_on_serve_the_next_epoch(pair):
    assert [_said(found, f"workers {epoch}") for found in pair for epoch in (0, 1)] == [[[16]]] * 4


def test_a_loop_in_a_loop_has_its_own_end(pair):
    assert [_said(found, "nested") for found in pair] == [[[3, 5, 5, 5]]] * 2


def test_the_next_loop_is_whole_after_all_have_left_the_one_before(pair):
    assert [_said(found, "break") + _said(found, "after") for found in pair] == [[[11], [20]]] * 2


def test_the_next_loop_is_whole_after_one_has_left_the_one_before(pair):
    assert [_said(found, "after one left") for found in pair] == [[[20]]] * 2


def test_a_loader_that_raises_is_told_to_all_ranks_at_one_batch(pair):
    assert [_said(found, "broken") for found in pair] == [[[10, "LoaderFailedError"]], [[10, "ValueError"]]]


def test_collectives_for_every_third_batch_are_no_matter(pair):
    assert [_said(found, "accumulated") for found in pair] == [[[15]]] * 2


def test_the_ring_has_the_pass_as_it_was_trained_on(pair):
    assert [_said(found, "recorded") for found in pair] == [[[11, True, True]]] * 2


def test_a_loop_inside_another_one_agrees_in_a_group_of_its_own_and_no_loop_makes_a_second_one(pair):
    assert [_said(found, "group") for found in pair] == [[[["ncclwatch even_batches"] * 2]]] * 2


def test_a_loop_after_destroy_process_group_says_so(pair):
    assert all("after destroy_process_group" in str(_said(found, "destroyed")) for found in pair)
