"""Stacks of many ranks, merged; checked against a naive twin as well."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclwatch.contract.model.rank import StackDump, StackFrame
from ncclwatch.contract.stacks.places import Doing, Place, place_of
from ncclwatch.contract.stacks.tree import Branch, classes, gang_line, gangs, role_of, short_path, tree, tree_lines

TORCH = "/env/lib/python3.11/site-packages/torch"


def frame(function: str, file: str = "/home/u/train.py", line: int = 1) -> StackFrame:
    return StackFrame(function=function, file=file, line=line)


def dump(rank: int, *frames: StackFrame, thread: str = "MainThread") -> StackDump:
    """`frames` outermost first, as people read."""
    return StackDump(rank=rank, threads=((thread, tuple(reversed(frames))),))


def test_ranks_share_frames_up_to_where_they_part_and_the_odd_one_comes_first():
    torch = [frame(name, f"{TORCH}/a.py", line) for name, line in (("b", 7), ("c", 8))]
    dumps = [dump(rank, frame("main", line=9), frame("train", line=97), *torch) for rank in (0, 1, 3)]
    dumps.append(dump(2, frame("main", line=9), frame("save", line=130)))
    assert list(tree_lines(tree(classes(dumps)))) == [
        "0-3    main (u/train.py:9)",
        "2        save (u/train.py:130)",
        "0-1,3    train (u/train.py:97)",
        "         b (torch/a.py)",
        "         c (torch/a.py:8)",
    ]


def test_a_line_parts_ranks_in_the_users_code_and_at_the_leaf_and_nowhere_else():
    inside = [dump(rank, frame("f", f"{TORCH}/a.py", line=rank), frame("g", f"{TORCH}/a.py", 5)) for rank in range(2)]
    assert len(classes(inside)) == 1
    assert len(classes([dump(rank, frame("f", line=rank + 1), frame("g", f"{TORCH}/a.py", 5)) for rank in (0, 1)])) == 2
    assert len(classes([dump(rank, frame("f", f"{TORCH}/a.py", line=rank + 1)) for rank in (0, 1)])) == 2


def test_paths_of_two_nodes_are_the_same_file():
    one = dump(0, frame("f", "/node1/env/lib/python3.11/site-packages/torch/a.py", 3))
    other = dump(1, frame("f", "/node2/lib/python3.12/site-packages/torch/a.py", 3))
    assert [stack.ranks for stack in classes([one, other])] == [(0, 1)]


@pytest.mark.timeout(10)
def test_a_path_of_megabytes_is_shortened_in_one_pass():
    assert short_path("/home/" + "a/b" * 1_000_000 + "/site-packages/x/y.py") == "x/y.py"
    assert short_path("/home/" + "ab" * 1_000_000 + "/y.py").endswith("ab/y.py")


def test_long_rows_of_frames_of_torch_are_shortened():
    row = [frame(f"f{number}", f"{TORCH}/a.py") for number in range(6)]
    lines = list(tree_lines(tree(classes([dump(0, frame("main"), *row)]))))
    assert [line.split()[-2] for line in lines[1:]] == ["f0", "3", "f4", "f5"]


def test_threads_are_compared_with_those_of_their_name():
    dumps = [dump(rank, frame("f"), thread=f"Thread-{rank + 3} (save)") for rank in range(2)]
    (found,) = classes([*dumps, dump(2, frame("f"), thread="MainThread")])[:1]
    assert (found.role, found.ranks) == ("Thread (save)", (0, 1))
    assert role_of("ThreadPoolExecutor-0_1") == "ThreadPoolExecutor"


def place(line: int) -> Place:
    return place_of((frame("train", line=line),))


def test_gangs_in_one_line_the_odd_ones_first():
    where = {rank: place(55) for rank in (0, 1, 2, 4, 5, 6, 7)} | {3: place(88)}
    found = gangs(where)
    assert gang_line(found) == "3 in train train.py:88; 0-2,4-7 in train train.py:55"
    assert [gang.odd for gang in found] == [True, False]


def test_nobody_is_odd_among_two_nor_in_halves():
    assert not any(gang.odd for gang in gangs({0: place(1), 1: place(2)}))
    assert not any(gang.odd for gang in gangs({0: place(1), 1: place(1), 2: place(2), 3: place(2)}))


def test_without_a_majority_nobody_is_odd():
    assert not any(gang.odd for gang in gangs({0: place(1), 1: place(1), 2: place(2), 3: place(2), 4: place(3)}))


def test_one_in_twenty_is_odd_and_two_in_twenty_are_not():
    twenty = {rank: place(1) for rank in range(20)}
    assert gangs(twenty | {19: place(2)})[0].odd
    assert not gangs(twenty | {18: place(2), 19: place(2)})[0].odd


def test_of_a_rank_without_stacks_no_place_is_told():
    assert classes([StackDump(rank=0, failure="refused")]) == ()
    assert gangs({}) == ()
    assert Place(doing=Doing.UNKNOWN).brief == "at an unknown place"


FRAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=5)


@given(st.lists(FRAMES, min_size=1, max_size=12))
def test_every_prefix_has_the_ranks_of_a_naive_twin(stacks):
    dumps = [dump(rank, *(frame(name) for name in names)) for rank, names in enumerate(stacks)]
    naive: dict[tuple[str, ...], set[int]] = {}
    for rank, names in enumerate(stacks):
        for depth in range(1, len(names) + 1):
            naive.setdefault(tuple(names[:depth]), set()).add(rank)
    found: dict[tuple[str, ...], set[int]] = {}
    for branch in tree(classes(dumps)):
        _collect(branch, (), found)
    assert found == naive


def _collect(branch: Branch, above: tuple[str, ...], found: dict[tuple[str, ...], set[int]]) -> None:
    for inner in branch.frames:
        above = (*above, inner.function)
        found[above] = set(branch.ranks)
    for below in branch.branches:
        _collect(below, above, found)
