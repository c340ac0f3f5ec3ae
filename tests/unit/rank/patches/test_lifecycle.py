"""Who waits to make a group, or to initialise, says for how many ranks, or that these are not all of the job.

Who waits for a key of the store names it without its numbers, and so does who has set one.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402 - needs torch
from torch._C import _distributed_c10d  # noqa: E402
from torch.distributed import distributed_c10d as c10d  # noqa: E402

from ncclwatch.contract.model.rank import RankView, WaitKind  # noqa: E402
from ncclwatch.contract.ring.reader import Ring  # noqa: E402
from ncclwatch.contract.ring.views import Picture, rank_view  # noqa: E402
from ncclwatch.rank.patches import keys, lifecycle  # noqa: E402
from ncclwatch.rank.patches.patching import Patches  # noqa: E402
from ncclwatch.rank.recorder import Recorder  # noqa: E402
from ncclwatch.rank.ring.ringfile import RingFile  # noqa: E402


class Seen:
    """What the ring says of the main thread's wait whenever torch makes a group."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.waits: list[tuple[WaitKind, int]] = []
        self.held: list[int] = []  # groups that torch knew
        self.counted: list[int] = []  # those that all ranks make and this one has made, the default group among them

    def view(self) -> RankView:
        with Ring(self._recorder.ring.path) as ring:
            return rank_view(Picture.of(ring, 1 << 62))

    def look(self) -> None:
        view = self.view()
        wait = view.threads[0].wait
        assert wait is not None
        self.waits.append((wait.kind, wait.seq))
        self.held.append(view.groups_held)
        self.counted.append(view.groups_counted)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    monkeypatch.setenv("WORLD_SIZE", "4")
    recorder = Recorder(RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(4, 4), attempt=0))
    found, original = Seen(recorder), c10d._new_process_group_helper

    def helper(*args: object, **kwargs: object) -> object:
        found.look()
        return original(*args, **kwargs)

    monkeypatch.setattr(c10d, "_new_process_group_helper", helper)
    patches = Patches()
    lifecycle.install(patches, lambda: recorder, lambda given: None)
    yield found
    patches.restore()
    if dist.is_initialized():
        dist.destroy_process_group()


def test_who_initialises_says_for_how_many_ranks(seen: Seen):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert seen.waits == [(WaitKind.INIT, 1)]


def test_who_says_no_number_has_that_of_the_environment(seen: Seen, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    dist.init_process_group("gloo")
    assert seen.waits == [(WaitKind.INIT, 1)]


def test_a_group_that_all_ranks_make_has_a_number(seen: Seen):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.new_group([0])
    assert seen.waits[1:] == [(WaitKind.NEW_GROUP, 1)]


def test_who_has_made_a_group_has_counted_beyond_its_number(seen: Seen):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.new_group([0], use_local_synchronization=True)
    dist.new_group([0])
    assert seen.counted == [0, 1, 1]
    assert seen.view().groups_counted == 2


@pytest.mark.parametrize("given", [((), {"use_local_synchronization": True}), ((None, None, None, True), {})])
def test_a_group_that_its_members_alone_make_has_none(seen: Seen, given: tuple[tuple[object, ...], dict[str, object]]):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    args, kwargs = given
    dist.new_group([0], *args, **kwargs)
    assert seen.waits[1:] == [(WaitKind.NEW_GROUP, 0)]


@pytest.mark.usefixtures("seen")
def test_who_alone_makes_a_group_is_known_as_torch_takes_it():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    locally = {"use_local_synchronization": True}
    given = [{"ranks": [2, 0], **locally}, locally, {"ranks": range(5000), **locally}]
    assert [lifecycle._members_of(each) for each in given] == [(0, 2), (0,), ()]


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize("backend", ["gloo", None, "cpu:gloo,cuda:gloo"])
def test_of_a_group_that_all_make_its_members_meet_alone(backend: str | None, monkeypatch: pytest.MonkeyPatch):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    given = [
        {"ranks": [2, 0]},
        {"ranks": None},
        {"ranks": [0], "backend": "cpu:gloo,cuda:nccl"},
        {"split_ranks": [[0]]},
    ]
    assert [lifecycle._members_of(each) for each in given] == [(0, 2), (), (0,), ()]
    assert lifecycle._members_of({"ranks": [0], "backend": "mpi"}) == ()
    with monkeypatch.context() as changed:
        changed.setenv("TORCH_DIST_INIT_BARRIER", "1")
        assert lifecycle._members_of(given[0]) == ()


@pytest.mark.usefixtures("seen")
def test_who_splits_a_group_waits_for_its_members_only(monkeypatch: pytest.MonkeyPatch):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parent = dist.new_group([0])
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [2, 0] if group is parent else [])
    given = [{"parent_pg": parent, "split_ranks": [[0], [2]]}, {"parent_pg": dist.group.WORLD, "split_ranks": [[0]]}]
    assert [lifecycle._members_of(each) for each in given] == [(0, 2), ()]


@pytest.mark.usefixtures("seen")
def test_a_group_that_is_split_from_one_with_a_device_needs_all_ranks_of_that(monkeypatch: pytest.MonkeyPatch):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    bound = SimpleNamespace(bound_device_id=torch.device("cuda", 0))
    monkeypatch.setattr(c10d, "_get_default_group", lambda: bound)
    assert lifecycle._members_of({"ranks": [0], "backend": "nccl"}) == ()


def test_a_generator_of_members_is_left_to_torch():
    ranks = (rank for rank in [0])
    assert lifecycle._members_of({"ranks": ranks, "use_local_synchronization": True}) == ()
    assert list(ranks) == [0]


def test_of_how_many_groups_torch_knows_a_group_gets_its_name_is_known(seen: Seen):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.new_group([0])
    dist.new_group([0], use_local_synchronization=True)
    assert seen.held == [0, 1, 2]


def test_parts_of_a_group_that_not_all_ranks_are_in_have_no_number(seen: Seen):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    whole, part = dist.group.WORLD, dist.new_group([0])
    assert [lifecycle._number_of({"parent_pg": parent}) for parent in (None, whole, part)] == [2, 2, 0]


def read(recorder: Recorder) -> RankView:
    with Ring(recorder.ring.path) as ring:
        return rank_view(Picture.of(ring, 1 << 62))


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Recorder, list[tuple[WaitKind, str]]]]:
    """Give a recorder, and what its ring says of the main thread's wait whenever a store is asked for a key."""
    recorder = Recorder(RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(4, 4), attempt=0))
    waits: list[tuple[WaitKind, str]] = []
    original = _distributed_c10d.Store.get

    def get(*args: object, **kwargs: object) -> object:
        wait = read(recorder).threads[0].wait
        assert wait is not None
        waits.append((wait.kind, wait.label))
        return original(*args, **kwargs)

    monkeypatch.setattr(_distributed_c10d.Store, "get", get)
    patches = Patches()
    lifecycle.install(patches, lambda: recorder, lambda given: None)
    yield recorder, waits
    patches.restore()


def test_a_wait_names_its_key_without_numbers(asked: tuple[Recorder, list[tuple[WaitKind, str]]]):
    recorder, waits = asked
    store = dist.PrefixStore("job", dist.HashStore())
    store.set("chunk-7/of-12", "x")
    store.get("chunk-7/of-12")
    assert waits == [(WaitKind.STORE, "chunk-#/of-#")]
    assert read(recorder).threads[0].wait is None


def test_the_names_of_keys_that_were_set_are_kept_once(asked: tuple[Recorder, list[tuple[WaitKind, str]]]):
    recorder, _ = asked
    store = dist.HashStore()
    for number in range(5):
        store.set(f"chunk-{number}", "x")
    store.set("ready", "x")
    assert read(recorder).keys_set == ("chunk-#", "ready")


def test_names_beyond_the_bound_are_left_out(asked: tuple[Recorder, list[tuple[WaitKind, str]]]):
    recorder, waits = asked
    store = dist.HashStore()
    names = [f"name-{chr(97 + n)}" for n in range(keys.NAMES_MAX + 2)]
    for name in names:
        store.set(name, "x")
        store.get(name)
    assert read(recorder).keys_set == tuple(names[: keys.NAMES_MAX])
    assert [label for _, label in waits] == [*names[: keys.NAMES_MAX], "", ""]


@pytest.mark.parametrize(
    ("key", "name"),
    [("a1", "a#"), (["b1", "b22"], "b#"), (["b", "c"], ""), ([], ""), (None, ""), ("x" * 99, "x" * keys.NAME_MAX)],
)
def test_a_key_has_a_name(key: object, name: str):
    assert keys.name_of(key) == name


@pytest.mark.parametrize("own_store", [False, True])
def test_where_the_ranks_meet_is_recorded_only_of_a_store_at_an_address(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, *, own_store: bool
):
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    monkeypatch.setenv("MASTER_PORT", "29500")
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True) if own_store else dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert seen.view().endpoint == (f"127.0.0.1:{store.port}" if own_store else "")
