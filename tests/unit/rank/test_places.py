"""Which rank of how many a process is, by what it was told."""

import pytest

from ncclwatch.rank import identity

VARIABLES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"rank": 3, "world_size": 4}, (3, 4)),
        ({"rank": 3, "world_size": 4, "init_method": "tcp://10.0.0.1:23456"}, (3, 4)),
        ({"init_method": "tcp://10.0.0.1:23456?rank=3&world_size=4"}, (3, 4)),
        ({"init_method": "file:///shared/init?rank=3", "world_size": 4}, (3, 4)),
        ({}, (1, 2)),
        ({"init_method": "env://"}, (1, 2)),
        ({"init_method": "env://", "rank": 0}, (0, 2)),
        ({"init_method": "tcp://10.0.0.1:23456"}, None),
        ({"store": object()}, None),
        ({"rank": 4, "world_size": 4}, None),
        ({"rank": "three", "world_size": None}, None),
        ({"init_method": 7, "rank": -1, "world_size": -1}, (1, 2)),
    ],
)
def test_a_call_of_init_process_group_says_it_as_torch_reads_it(
    said: dict[str, object], place: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert identity.from_call(said) == place


def test_a_call_that_says_nothing_in_an_environment_that_says_nothing_is_unknown() -> None:
    assert identity.from_call({"init_method": "env://"}) is None
    assert identity.from_environment() is None


@pytest.mark.parametrize(("rank", "world"), [VARIABLES[:2], VARIABLES[2:4], VARIABLES[4:]])
def test_each_launcher_has_its_own_variables(rank: str, world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rank, "5")
    assert identity.from_environment() is None
    monkeypatch.setenv(world, "8")
    assert identity.from_environment() == (5, 8)


def test_a_job_without_a_launcher_is_known_by_where_its_ranks_meet():
    assert identity.instance(identity.meeting_of(("node0", 29500))) == "node0:29500/"
    assert identity.meeting_of(None) == {}
