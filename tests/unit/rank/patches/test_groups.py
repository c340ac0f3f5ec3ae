"""What is known of process groups at first sight, also of those that torch keeps no list of."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402 - needs torch

from ncclwatch.contract.ring.reader import Ring  # noqa: E402
from ncclwatch.contract.ring.views import Picture, rank_view  # noqa: E402
from ncclwatch.rank.patches import collectives, groups, lifecycle  # noqa: E402
from ncclwatch.rank.patches.patching import Patches  # noqa: E402
from ncclwatch.rank.recorder import Recorder  # noqa: E402
from ncclwatch.rank.ring.ringfile import RingFile  # noqa: E402


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(1, 1), attempt=0))
    patches = Patches()
    collectives.install(patches, lambda: recorder, None)
    yield recorder
    patches.restore()
    recorder.ring.close()


def nameless() -> dist.ProcessGroup:
    """Make a group as torch.distributed._dist2 does: it has no name, and no list has it."""
    store = dist.HashStore()
    made = dist.ProcessGroup(store, 0, 1)
    gloo = dist.ProcessGroup.BackendType.GLOO
    made._set_default_backend(gloo)
    made._register_backend(
        torch.device("cpu"), gloo, dist.ProcessGroupGloo(store, 0, 1, datetime.timedelta(seconds=10))
    )
    return made


def test_groups_without_a_name_have_rows_of_their_own(recorder: Recorder):
    first, second = nameless(), nameless()
    for group in (first, second, first):
        group.allreduce([torch.ones(1)]).wait()
    with Ring(recorder.ring.path) as ring:
        view = rank_view(Picture.of(ring, 1 << 62))
    assert [(group.name, group.enqueued, group.completed) for group in view.groups] == [
        ("nameless", 2, 2), ("nameless~1.2", 1, 1),
    ]  # fmt: skip
    assert [op.group for op in view.history] == ["nameless", "nameless~1.2", "nameless"]


def test_a_group_without_a_name_outlives_the_end_of_others(recorder: Recorder):
    group = nameless()
    group.allreduce([torch.ones(1)]).wait()
    lifecycle._note_destroyed(recorder)
    with Ring(recorder.ring.path) as ring:
        assert not rank_view(Picture.of(ring, 1 << 62)).groups[0].destroyed


@pytest.mark.parametrize(
    ("backends", "never_asked"),
    [
        ({}, True),
        ({"cpu": "gloo", "cuda": "nccl"}, True),
        ({"cuda": "nccl"}, True),
        ({"xpu": "xccl", "cpu": "gloo"}, True),
        ({"cpu": "gloo", "cuda": "gloo"}, False),
        ({"cpu": "fake"}, False),
    ],
)
def test_works_that_are_not_the_cpus_are_never_held_or_asked(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, backends: dict[str, str], never_asked: bool
):
    monkeypatch.setattr(groups, "_backends", lambda pg: backends)
    assert groups.group_of(recorder, nameless()).by_account == never_asked
