"""Each way of moving data is recorded exactly once, with what the table says; by both recorders.

The table (table.toml) is what rank 0 of rows.py recorded and what it was seen to wait in. `pytest
tests/coverage --rewrite` writes it anew; read the difference before you believe it.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch

from ncclwatch.contract.ring.layout import REDUCE_OPS
from tests.integration.launch import PROGRAMS, run_ranks
from tests.integration.recorders import recorded_by

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
TABLE = HERE / "table.toml"
RECORDERS = {"python": "Recorder", "hot": "Recorder, with its hot path in C", "native": "NativeRecorder"}
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads(TABLE.read_text()) if TABLE.exists() else {}


def operation_words(found: dict[str, Any]) -> str:
    """Return one recorded operation as a line of the table; payloads of pickled objects have no size there."""
    size = "object" if found["dtype"] == "uint8" else str(found["numel"])
    parts = [found["op"], f"{found['group']}+{found['seq']}", size, found["dtype"], found["reduce_op"]]
    if found["peer"] >= 0:
        parts.append(f"rank {found['peer']}")
    if found["label"]:
        parts.append(f"[{found['label']}]")
    if not found["main"]:
        parts.append("(another thread)")
    return " ".join(part for part in parts if part)


def wait_words(found: list[Any] | None) -> str:
    """Return what rank 0 was seen to wait in, as the table says it."""
    if found is None:
        return "nothing"
    kind, main, *place = found
    words = kind
    if place:
        op, group, _, peer = place
        words = f"{kind} {op} {group}" + (f" rank {peer}" if peer >= 0 else "")
    return words + ("" if main else " (another thread)")


def knowable(words: str, recorder: str) -> str:
    """Return a line of the table as a recorder can write it: before torch 2.10 Python cannot ask for the reduce op."""
    if recorder == "native" or torch.__version__ >= (2, 10):
        return words
    return " ".join(word for word in words.split() if word not in REDUCE_OPS)


@pytest.fixture(scope="session", params=list(RECORDERS))
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    recorder: str = request.param
    shared = tmp_path_factory.mktemp("shared")
    program = os.path.relpath(HERE / "program.py", PROGRAMS)
    ranks = run_ranks(
        program,
        2,
        tmp_path_factory.mktemp("rings"),
        str(shared),
        **recorded_by(recorder),
        PYTHONPATH=str(HERE.parent.parent),
    )
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].err + ranks[1].err
    return recorder, [json.loads(rank.out.splitlines()[-1]) for rank in ranks]


def test_the_recorder_that_was_asked_for_recorded(recorded):
    recorder, ranks = recorded
    assert [rank["recorder"] for rank in ranks] == [RECORDERS[recorder]] * 2


def test_the_table_is_complete_and_up_to_date(recorded, request: pytest.FixtureRequest):
    _, (rank_0, rank_1) = recorded
    if request.config.getoption("--rewrite"):
        lines = [
            "# What rank 0 of rows.py records: op, group+number within the row, elements, dtype, reduce op, peer.\n"
        ]
        for name, row in rank_0["rows"].items():
            operations = "".join(f'  "{operation_words(each)}",\n' for each in row["operations"])
            lines.append(f'\n[{name}]\nwaits_in = "{wait_words(rank_1["rows"][name]["waits"][0])}"\n')
            lines.append(f"records = [\n{operations}]\n" if operations else "records = []\n")
        TABLE.write_text("".join(lines))
    assert list(EXPECTED) == list(rank_0["rows"])


@pytest.mark.parametrize("name", list(EXPECTED))
def test_a_way_is_recorded_once_and_who_waits_is_seen(recorded, name: str):
    recorder, (rank_0, rank_1) = recorded
    row = rank_0["rows"][name]
    assert (row["trouble"], rank_1["rows"][name]["trouble"]) == ("", "")
    found = [operation_words(each) for each in row["operations"]]
    assert found == [knowable(words, recorder) for words in EXPECTED[name]["records"]]
    assert wait_words(rank_1["rows"][name]["waits"][0]) == EXPECTED[name]["waits_in"]
    assert row["blocked"] == []
    assert {each["site"] for each in row["operations"]} <= {SITES.get(name, "rows.py")}


def test_the_callers_of_a_helper_are_recorded(recorded):
    _, (rank_0, _) = recorded
    (found,) = rank_0["rows"]["all_reduce_through_helpers"]["operations"]
    outside = ["Reducing.forward", "all_reduce_through_helpers", "run", "main", "<module>"]
    assert (found["function"], found["callers"]) == ("mean", [*outside, "<module>"])  # the last is who forked the rank


# Where it is not rows.py: a thread that torch starts has no line of the user's.
SITES = dict.fromkeys(("checkpoint_async_save", "functional_in_a_thread_of_torch"), "")
# What gloo numbers without an operation of its own being issued: found by torch's flight recorder.
BACKEND_SPENDS_MORE = {"reduce_scatter": 1, "monitored_barrier": 1}


def test_sequence_numbers_are_the_backends_own(recorded):
    _, (rank_0, _) = recorded
    rows = {name: row for name, row in rank_0["rows"].items() if "witness" in row and "again" not in name}
    if not any(row["witness"] for row in rows.values()):
        pytest.skip("the flight recorder of this torch knows nothing of gloo")
    spent, compared = 0, 0
    for name, row in rows.items():
        collectives = [each["group"] for each in row["operations"] if each["op"] not in ("send", "recv")]
        if collectives and name not in BACKEND_SPENDS_MORE:
            theirs = {group: seq - (spent if group == "0" else 0) for group, seq in row["witness"].items()}
            used = {group: seq for group, seq in row["enqueued"].items() if seq and group in theirs}
            assert {group: theirs[group] for group in used} == used, name
            compared += 1
        spent += BACKEND_SPENDS_MORE.get(name, 0)
    assert compared > 50


def _used(hashes: dict[str, int]) -> dict[str, int]:
    """Leave out groups in which nothing was issued: a subgroup is in the rings of its own members alone."""
    return {group: digest for group, digest in hashes.items() if digest}


def test_ranks_agree_on_every_history(recorded):
    _, (rank_0, rank_1) = recorded
    for name, row in rank_0["rows"].items():
        assert _used(row["hashes"]) == _used(rank_1["rows"][name]["hashes"]), name


def test_everything_is_seen_to_complete(recorded):
    _, ranks = recorded
    for rank in ranks:
        assert all(enqueued == completed for enqueued, completed in rank["frontier"].values())
        assert all(row.get("dropped", 0) == 0 for row in rank["rows"].values())


# Where the first to come need not be seen to wait on its main thread for the last one, who then waits for nobody.
WAITED_FOR_IN_C_PLUS_PLUS = {"ddp_init", "ddp_buffers", "ddp_find_unused", "ddp_comm_hook", "ddp_join"}  # constructors
MEETINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


def test_who_comes_first_is_blocked_until_the_last_has_come(recorded):
    _, (rank_0, rank_1) = recorded
    compared, untold = 0, []
    for name in rank_0["rows"]:
        wait = rank_1["rows"][name]["waits"][0]
        if wait is None or not wait[1] or len(wait) < 3 or wait[0] not in ("collective", "send", "recv"):
            continue
        kind = 1 if wait[0] in ("send", "recv") else 0
        early, late = (rows["rows"][name]["blocked_ns"][kind] for rows in (rank_0, rank_1))
        if kind == 0 and wait[2] not in MEETINGS:
            continue
        compared += 1
        if early < max(50e6, late):  # it was watched for a tenth of a second
            untold.append(name)
    assert compared > 40
    # How long one of these is blocked in Python beside that depends on who came how late.
    assert set(untold) <= WAITED_FOR_IN_C_PLUS_PLUS


def test_groups_have_their_names_and_members(recorded):
    _, (rank_0, _) = recorded
    groups = rank_0["rows"]["checkpoint_async_save"]["groups"]
    assert groups["io"] == [0, 1] and groups["default_pg"] == [0, 1]
