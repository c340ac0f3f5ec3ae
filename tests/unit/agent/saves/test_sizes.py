"""How large a save becomes and whether there is room is told by what is known, and never for a job that fits."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ncclwatch.contract.ring.rows import SaveRow
from ncclwatch_agent.saves import file_places
from ncclwatch_agent.saves.file_places import FilePlace, look
from ncclwatch_agent.saves.sizes import KINDS_MAX, SaveSizes, kind_of

S = 1_000_000_000
GB = 10**9


def row(
    path: str = "/data/step_100.pt", began: int = 1, ended: int = 0, least: int = 0, call: str = "torch.save"
) -> SaveRow:
    return SaveRow(0, began * S, ended * S, 0, call, path, "", least)


def place(looked: int, free: float, size: float = -1, held: float = 0, filesystem: str = "ext4") -> FilePlace:
    return FilePlace(
        path="/data/x", identity="here", filesystem=filesystem, looked_ns=looked * S,
        size_bytes=int(size * GB), held_bytes=int(held * GB), free_bytes=int(free * GB),
    )  # fmt: skip


def test_what_its_tensors_have_is_told_and_otherwise_what_the_last_one_like_it_had():
    sizes = SaveSizes()
    assert sizes.total(row(least=7)) == (7, False)
    assert sizes.total(row()) == (-1, False)
    sizes.ended(row(ended=5), place(6, free=9, size=4))
    assert sizes.total(row("/data/step_200.pt", began=8)) == (4 * GB, True)
    assert sizes.total(row("/data/step_200.pt", began=8, least=7)) == (7, False)
    assert sizes.total(row("/data/last.pt", began=8)) == (-1, False)
    assert sizes.total(row("/data/step_200.pt", began=8, call="dcp.save")) == (-1, False)


def test_what_is_remembered_is_bounded():
    sizes = SaveSizes()
    for number in range(KINDS_MAX + 1):
        sizes.ended(row(f"/data/{'x' * number}.pt", ended=5), place(6, free=9, size=4))
    assert sizes.total(row("/data/.pt", began=8))[0] == -1
    assert sizes.total(row("/data/x.pt", began=8))[0] == 4 * GB


@pytest.mark.parametrize(
    ("free", "held", "lacks"),
    [(1.0, 0, 3.0), (4.0, 0, 0), (3.999, 0, 0.001), (1.0, 3.0, 0), (1.0, 2.0, 1.0)],
)
def test_a_save_lacks_what_neither_is_free_nor_comes_free_with_the_old_file(free: float, held: float, lacks: float):
    found = SaveSizes().lacks(row(least=4 * GB), place(2, free=free, size=held, held=held))
    assert found == pytest.approx(lacks * GB)


@pytest.mark.parametrize(
    "there",
    [
        None,
        place(2, free=-1e-9),
        place(2, free=1, filesystem="zfs"),
        place(0, free=1),  # of a look before this save
        replace(place(2, free=1), identity=""),  # no plain file
    ],
)
def test_of_room_that_nobody_can_tell_nothing_is_told(there: FilePlace | None):
    assert SaveSizes().lacks(row(least=4 * GB), there) == 0


@pytest.mark.parametrize(
    ("path", "lacks"),
    [
        ("/data/step_100.pt", True),
        ("/data/checkpoint-500/optimizer.pt", True),
        ("/data/epoch=3.ckpt", True),
        ("/data/global_step100/mp_rank_00_model_states.pt", True),
        ("/data/last.pt", False),
        ("/data/resnet50.pt", False),
        ("/runs/step_1/of/it/last.pt", False),
    ],
)
def test_after_a_save_room_is_wanted_for_one_beside_it_only_if_its_path_is_numbered(path: str, lacks: bool):
    sizes, there = SaveSizes(), place(6, free=1, size=4, held=4)
    sizes.ended(row(path, ended=5), there)
    assert sizes.lacks(row(path, ended=5), there) == (3 * GB if lacks else 0)
    assert sizes.lacks(row(path, ended=5), place(4, free=1, size=4, held=4)) == 0  # a look before its end
    assert sizes.lacks(row(path, ended=5)._replace(error="OSError"), there) == 0


def test_a_size_that_is_only_of_the_last_one_may_be_a_little_off():
    sizes = SaveSizes()
    sizes.ended(row(ended=5), place(6, free=9, size=4))
    following = row("/data/step_200.pt", began=8)
    assert sizes.lacks(following, place(9, free=3.81)) == 0
    assert sizes.lacks(following, place(9, free=3.7)) > 0


def test_a_job_that_makes_room_between_its_saves_is_warned_once():
    sizes, full = SaveSizes(), place(6, free=1, size=4, held=4)
    sizes.ended(row(ended=5), full)
    assert sizes.lacks(row(ended=5), full) > 0
    second = row("/data/step_200.pt", began=10, ended=15)
    after = place(16, free=1, size=4, held=4)
    sizes.ended(second, after)
    assert sizes.lacks(second, after) == 0
    assert sizes.lacks(row("/data/step_300.pt", began=20, least=4 * GB), place(21, free=1)) == 0


def test_numbers_alone_tell_no_two_kinds_apart():
    assert kind_of(row("/data/step_1.pt")) == kind_of(row("/data/step_2000.pt"))
    assert kind_of(row("/data/step_1.pt")) != kind_of(row("/data/step_1.opt"))


def test_a_directory_with_less_room_than_its_file_system_has_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = os.statvfs(tmp_path)
    fields = {name: getattr(whole, name) for name in dir(whole) if name.startswith("f_")}

    def rooms(path: object) -> object:
        mine = str(path).startswith(str(tmp_path))
        less = {"f_blocks": whole.f_blocks // 2, "f_bavail": 0, "f_bfree": 0}
        return type("Room", (), {**fields, **(less if mine else {})})

    path = str(tmp_path / "model.pt")
    monkeypatch.setattr(os, "statvfs", rooms)
    assert look(path).refused == f"the quota of {tmp_path} is used up"
    monkeypatch.setattr(os, "statvfs", lambda path: rooms(tmp_path))
    assert look(path).refused == "its file system is full"


def test_what_a_look_finds_says_when_it_began_and_how_large_the_file_is(tmp_path: Path):
    path = tmp_path / "model.pt"
    before = look(str(path))
    path.write_bytes(b"x" * 70_000)
    after = look(str(path))
    assert (before.size_bytes, before.held_bytes, after.size_bytes) == (-1, 0, 70_000)
    assert after.looked_ns > before.looked_ns > 0
    assert file_places.look(str(tmp_path)).size_bytes == -1
