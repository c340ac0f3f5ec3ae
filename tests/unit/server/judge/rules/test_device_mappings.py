"""What is said to have put ranks on one GPU, and what to do about it: never a number that nobody knows."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.devices import DeviceView
from ncclwatch.contract.model.rank import RankView
from ncclwatch_server.judge.rules.device_mappings import advice_for, mistake_of, strays_of, visible_words
from tests.unit.server.server_values import view


def on(rank: int, device: DeviceView | None, processes: int = 2, host: str = "a") -> RankView:
    return replace(view(rank), cuda=device, local_world_size=processes, host=host)


def device(index: int = 0, **changes: object) -> DeviceView:
    return replace(DeviceView(index=index, uuid="GPU-a", count=2, local_rank=index), **changes)  # type: ignore[arg-type]


def pair(one: DeviceView | None, other: DeviceView | None, **changes: object) -> dict[int, RankView]:
    return {0: on(0, one, **changes), 1: on(1, other, **changes)}  # type: ignore[arg-type]


MODULO = pair(device(0), device(0, local_rank=2), processes=4)


def test_more_processes_than_devices_are_told_with_the_number_that_is_right():
    assert mistake_of(MODULO) == (
        "There are 4 processes on this node and 2 visible devices, taken by LOCAL_RANK modulo the devices."
    )
    assert "--nproc-per-node=2 here, not 4" in advice_for(MODULO)


@pytest.mark.parametrize(
    ("views", "how"),
    [
        (pair(device(0, chosen=0), device(0, local_rank=3, chosen=0), processes=4), "devices."),
        (pair(device(0), device(0, local_rank=3), processes=4), "; none of these ranks called torch.cuda.set_device."),
        (pair(device(0, chosen=0, local_rank=-1), device(0, chosen=0), processes=4), "devices."),
        (pair(device(1, chosen=1, local_rank=-1), device(1, chosen=1), processes=4), "devices."),
        (
            pair(device(0, local_rank=0, chosen=0), device(0, local_rank=0, chosen=-1), processes=4),
            "modulo the devices.",
        ),
    ],
)
def test_how_ranks_took_too_few_devices(views: dict[int, RankView], how: str):
    assert mistake_of(views).endswith(how)


def test_one_device_for_all_is_no_modulo():
    views = pair(device(0, count=1), device(0, count=1, local_rank=1))
    assert mistake_of(views) == (
        "There are 2 processes on this node and 1 visible device; none of these ranks called torch.cuda.set_device."
    )
    assert "--nproc-per-node=1 here, not 2" in advice_for(views)


def test_as_many_devices_as_processes_suffice():
    views = pair(device(), device())
    assert mistake_of(views) == (
        "The devices suffice (2 processes, 2 devices), but no rank called torch.cuda.set_device: all take the first "
        "they see."
    )
    assert advice_for(views).startswith("Give each rank a device of its own: ")


def test_the_same_choice_of_all_is_told():
    assert mistake_of(pair(device(chosen=0), device(chosen=0))) == (
        "The devices suffice (2 processes, 2 devices), but each rank chose device 0, whatever its LOCAL_RANK."
    )


def test_where_nobody_knows_how_many_devices_there_are_no_number_is_told():
    views = pair(device(count=0), device(count=0))
    assert mistake_of(views).startswith("The devices suffice, but no rank called")
    assert "nproc-per-node" not in advice_for(views)


@pytest.mark.parametrize("chosen", [0, 1])
def test_own_lists_of_devices_are_shown(chosen: int):
    views = pair(device(visible="3", count=1, chosen=0), device(visible=None, count=1, chosen=chosen))
    assert mistake_of(views) == (
        "Their own numbers mean the same GPU. CUDA_VISIBLE_DEVICES: rank 0: 3; rank 1: not set."
    )
    assert advice_for(views).startswith("Give each rank a GPU of its own in CUDA_VISIBLE_DEVICES")


def test_ranks_of_two_hosts_do_not_share_a_count():
    views = {0: on(0, device(chosen=0), 4, "a"), 1: on(1, device(chosen=0), 4, "b")}
    assert mistake_of(views).startswith("Their own numbers mean the same GPU.")
    assert "nproc-per-node" not in advice_for(views)


def test_two_choices_that_mean_one_device_are_shown_as_such():
    assert mistake_of(pair(device(0, chosen=0), device(1, chosen=1))).startswith("Their own numbers mean")


def test_a_rank_of_which_no_device_is_known_leaves_the_mistake_open():
    assert mistake_of(pair(device(), None)).startswith("Ranks that never call torch.cuda.set_device, or of which")
    assert "nproc-per-node" not in advice_for(pair(None, None))


def test_a_stray_tensor_is_told_with_both_devices():
    views = pair(device(0, chosen=0, used=True), device(0, chosen=1, used=True))
    assert mistake_of(views).startswith(
        "Rank 1 handed a tensor on device 0 to a collective, though device 1 was chosen: "
    )
    assert advice_for(views).startswith("Load with map_location=")


@pytest.mark.parametrize(
    ("changes", "strays"),
    [({}, True), ({"used": False}, False), ({"chosen": -1}, False), ({"chosen": 1}, False), ({"chosen": 0}, True)],
)
def test_a_stray_is_who_chose_another_device_than_it_used(changes: dict[str, object], strays: bool):
    found = strays_of({3: device(1, **({"chosen": 2, "used": True} | changes))})
    assert (list(found) == [3]) is strays


@pytest.mark.parametrize(("visible", "said"), [(None, "not set"), ("", "empty"), ("0,1", "0,1")])
def test_a_variable_that_is_empty_is_not_one_that_is_not_set(visible: str | None, said: str):
    assert visible_words(device(visible=visible)) == said
