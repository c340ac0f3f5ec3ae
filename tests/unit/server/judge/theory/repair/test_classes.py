"""Ranks that do the same are replayed once, and the outcome is that of a replay of all."""

import random
from collections.abc import Collection

from ncclwatch.contract.model.rank import CallSite, Op
from ncclwatch_server.judge.theory.repair.classes import Classes, classes
from ncclwatch_server.judge.theory.repair.edits import Change, Edit
from ncclwatch_server.judge.theory.repair.findings import find
from ncclwatch_server.judge.theory.repair.hang import CLASSES_FROM, Hang
from ncclwatch_server.judge.theory.repair.replay import Script, Stage, play
from ncclwatch_server.judge.theory.repair.search import Repair, _as_made_by
from ncclwatch_server.judge.theory.repair.tapes import Call, End, Tapes, write
from tests.spmd.repair.measure import carried_out, draw, tapes_of

ROWS, COLUMNS = 4, 8
WORLD = ROWS * COLUMNS


def call(group: str, line: int, **changes: object) -> Call:
    site = CallSite(file="train.py", line=line, function="f")
    return Call(**({"group": group, "op": Op.ALL_REDUCE, "site": site} | changes))  # type: ignore[arg-type]


def grid(*skipping: int) -> Tapes:
    """Return tapes of a grid of ranks, of which some leave out the call in their row of the last step."""
    groups = {"w": tuple(range(WORLD))}
    groups |= {f"row{row}": tuple(range(row * COLUMNS, (row + 1) * COLUMNS)) for row in range(ROWS)}
    groups |= {f"column{column}": tuple(range(column, WORLD, COLUMNS)) for column in range(COLUMNS)}
    calls = {}
    for rank in range(WORLD):
        row, column = call(f"row{rank // COLUMNS}", 1), call(f"column{rank % COLUMNS}", 2)
        last = [column] if rank in skipping else [row, column]
        calls[rank] = [call("w", 3), row, column] * 3 + [call("w", 3), *last, call("w", 3)]
    whole = write(groups, calls, dict.fromkeys(calls, End.GONE))
    stops = play(Stage(whole), [Script(tape.calls, tape.end) for tape in whole.by_rank.values()], eager=True).at
    ends = {rank: End.GONE if stops[rank] == len(made) else End.BLOCKED for rank, made in calls.items()}
    return write(groups, {rank: made[: stops[rank] + 1] for rank, made in calls.items()}, ends)


def sizes(found: Classes | None) -> list[int]:
    assert found is not None
    numbers = list(found.class_of.values())
    return sorted(numbers.count(number) for number in set(numbers))


def test_a_rank_of_a_grid_leaves_its_row_its_column_and_all_others() -> None:
    hang = Hang(grid())
    start = dict.fromkeys(range(WORLD), 0)
    assert sizes(classes(hang.peers, start)) == [WORLD]
    assert sizes(classes(hang.peers, start, {5})) == [1, ROWS - 1, COLUMNS - 1, (ROWS - 1) * (COLUMNS - 1)]


def test_ranks_at_different_places_of_a_tree_are_of_different_classes() -> None:
    root = call("w", 1, op=Op.BROADCAST, peer=0)
    found = write({"w": (0, 1, 2, 3)}, {rank: [root] for rank in range(4)}, {})
    assert sizes(classes(Hang(found).peers, dict.fromkeys(range(4), 0))) == [1, 1, 1, 1]


def test_there_are_no_classes_where_a_rank_talks_to_two_ranks_of_one_class() -> None:
    calls = {
        0: [call("w", 1, op=Op.RECV, peer=1), call("w", 1, op=Op.RECV, peer=2)],
        1: [call("w", 2, op=Op.SEND, peer=0)],
        2: [call("w", 2, op=Op.SEND, peer=0)],
    }
    hang = Hang(write({"w": (1, 0, 2)}, calls, {}))
    found = classes(hang.peers, dict.fromkeys(range(3), 0))
    assert found is None or len(set(found.class_of.values())) == 3


def outcomes(hang: Hang, scripts: dict[int, Script], alone: Collection[int], *, eager: bool) -> list[object]:
    """Return for each rank where it stops and whether it is stuck: all replayed, and one of each class."""
    found = classes(hang.peers, hang.cut, alone)
    ranks = list(scripts)
    whole = play(Stage(hang.tapes), list(scripts.values()), eager=eager)
    every = [(whole.at[at], at in whole.stuck) for at in range(len(ranks))]
    if found is None:
        return [every, every]
    leads: dict[int, int] = {}
    for rank, number in found.class_of.items():
        leads.setdefault(number, rank)
    stage = Stage(hang.tapes, found.class_of, found.kin)
    once = play(stage, [scripts[leads[number]] for number in range(len(leads))], eager=eager)
    return [every, [(once.at[found.class_of[rank]], found.class_of[rank] in once.stuck) for rank in ranks]]


def test_a_replay_of_classes_ends_as_a_replay_of_all_ranks() -> None:
    merged = 0
    for seed in range(1, 250):
        changed = draw(seed)
        if changed is None or changed.program.world < 3:
            continue
        hang = Hang(tapes_of(carried_out(changed)))
        if not hang.cut:
            continue
        rng = random.Random(seed)
        for rank in hang.tapes.by_rank:
            calls = list(hang.scripts[rank].calls)
            at = rng.randint(0, len(calls))
            edited = rng.choice((calls[:at] + calls[at + 1 :], calls[:at] + calls[at - 1 :], calls[:at]))
            scripts = hang.scripts | {rank: Script(edited, End.FREE)}
            every, once = outcomes(hang, scripts, {rank}, eager=hang.eager)
            assert every == once, f"seed {seed}, rank {rank}"
            found = classes(hang.peers, hang.cut, {rank})
            merged += found is not None and len(set(found.class_of.values())) < len(found.class_of)
    assert merged > 100


def test_of_many_ranks_the_one_that_left_a_call_out_is_told() -> None:
    assert WORLD >= CLASSES_FROM
    finding = find(grid(11))
    assert [(each.rank, each.missing) for each in finding.suspects] == [(11, (call("row1", 1),))]
    assert finding.certain


def test_a_rank_that_does_the_same_puts_the_call_into_its_own_group() -> None:
    hang = Hang(grid())
    mine, theirs = (hang.roles.number(call(f"row{row}", 1)) for row in (1, 2))
    found = Repair(edit=Edit(rank=11, change=Change.PUT_IN, at=1, put=(mine,)), score=(1, 0, 0, 0))
    assert _as_made_by(hang, found, 20).edit == Edit(rank=20, change=Change.PUT_IN, at=1, put=(theirs,))


def test_what_others_wait_in_is_wanted_of_a_rank() -> None:
    hang = Hang(write({"w": (0, 1, 2)}, {0: [call("w", 1)], 1: [], 2: [call("w", 2)]}, {1: End.STANDS}))
    assert [hang.roles.calls[number] for number in hang.wanted_of(1)] == [call("w", 1), call("w", 2)]
    assert [hang.roles.calls[number] for number in hang.wanted_of(0)] == [call("w", 2)]
