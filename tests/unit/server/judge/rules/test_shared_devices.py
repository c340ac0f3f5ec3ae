"""Whom NCCL names when two ranks are on one GPU, and which of them is at fault."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.devices import DeviceView, SharedDevice
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import Ending, GroupView, RankView
from ncclwatch.contract.model.verdict import Cause, Verdict
from ncclwatch_server.judge import judge
from ncclwatch_server.judge.explanation import When
from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.judge.verdicts import warnings_of
from tests.unit.server.server_values import view

WORDS = "DistBackendError: Last error: Duplicate GPU detected : rank {} and rank {} both on CUDA device 50"


def snapshot(*ranks: RankView) -> JobSnapshot:
    return JobSnapshot(job="job", world_size=4, ranks={each.rank: each for each in ranks}, stacks={}, silent={})


def refused(rank: int, pair: tuple[int, int] = (1, 2), members: tuple[int, ...] | None = None) -> RankView:
    """Return a rank that NCCL told of a pair, in the first collective of a group of these members."""
    ending = Ending(kind="crashed", exit_code=1, exception=WORDS.format(*pair), age_s=1.0)
    group = GroupView(name="g", desc="", ranks=members or (), enqueued=1, completed=0, prefix_hash=0)
    return replace(view(rank, ending), groups=(group,) if members is not None else ())


@pytest.mark.parametrize(
    ("members", "named"),
    [
        (None, (1, 2)),
        ((0, 1, 2, 3), (1, 2)),
        ((), (0,)),  # who its members are is not known: they may be fewer
        ((0, 2, 3), (0,)),  # its numbers are those within the group
    ],
)
def test_the_ranks_that_nccl_names_are_believed_where_its_numbers_are_the_jobs(
    members: tuple[int, ...] | None, named: tuple[int, ...]
):
    (found,) = judge(snapshot(refused(0, members=members), *(view(rank) for rank in (1, 2, 3))))
    assert found.cause is Cause.DUPLICATE_DEVICE
    assert tuple(culprit.rank for culprit in found.culprits) == named


@pytest.mark.parametrize(("ago_s", "cause"), [(9.0, Cause.RANK_CRASHED), (0.5, Cause.DUPLICATE_DEVICE)])
def test_another_crash_that_came_first_is_not_explained_by_it(ago_s: float, cause: Cause):
    (found,) = judge(snapshot(refused(0), view(1, Ending(kind="signalled", signal=9, age_s=ago_s))))
    assert found.cause is cause


def test_of_a_log_that_names_two_ranks_the_others_are_victims():
    said = SharedDevice(ranks=(1, 2), device="1000", host="gpu-03", path="job.log")
    (found,) = judge(replace(snapshot(), shared_devices=(said,)))
    assert ([culprit.rank for culprit in found.culprits], found.victims) == ([1, 2], (0, 3))


def on(rank: int, uuid: str = "GPU-a", **changes: object) -> RankView:
    device = replace(DeviceView(uuid=uuid, index=0, backend="nccl", count=4), **changes)  # type: ignore[arg-type]
    return replace(view(rank), cuda=device)


def warnings(*ranks: RankView) -> list[Verdict]:
    return list(warnings_of(open_case(snapshot(*ranks)), When.AT_REST))


@pytest.mark.parametrize(
    ("index", "doing"), [(3, "on its device 3"), (0, "on its device 0"), (-1, "on a GPU of another rank")]
)
def test_a_device_is_told_by_its_number_where_that_is_known(index: int, doing: str):
    (found,) = warnings(on(0, index=index), on(1, index=index))
    assert [each.doing for each in found.culprits] == [doing, doing]


def test_a_stray_is_told_and_the_rank_at_home_is_its_victim():
    (found,) = warnings(on(0, index=0, chosen=0, used=True), on(1, index=0, chosen=1, used=True))
    assert [each.rank for each in found.culprits] == [1]
    assert found.victims == (0,)


def test_where_all_strayed_all_are_told():
    (found,) = warnings(on(0, index=0, chosen=2, used=True), on(1, index=0, chosen=1, used=True))
    assert [each.rank for each in found.culprits] == [0, 1]
    assert found.victims == ()


@pytest.mark.parametrize(
    "other",
    [
        on(1, "GPU-b"),
        on(1, backend="gloo"),
        on(1, sharing="MPS"),
        replace(on(1), ending=Ending(kind="exited")),
        replace(on(1), attached=False),
        replace(on(1), cuda=None),
        on(1, ""),
    ],
)
def test_ranks_that_share_nothing_or_may_are_left_in_peace(other: RankView):
    assert warnings(on(0), other) == []
    assert warnings(on(0), on(1)) != []


def worked(rank: int, members: tuple[int, ...], enqueued: int, completed: int) -> RankView:
    group = GroupView(
        name=f"g{members}", desc="", ranks=members, enqueued=enqueued, completed=completed, prefix_hash=0
    )  # fmt: skip
    return replace(on(rank), groups=(group,))


def test_ranks_that_completed_a_collective_together_get_along():
    assert warnings(worked(0, (0, 1), 1, 0), worked(1, (0, 1), 1, 0)) != []
    assert warnings(worked(0, (0, 1), 1, 1), worked(1, (0, 1), 1, 0)) == []
    assert warnings(worked(0, (0, 1, 2), 1, 1), worked(1, (0, 1, 2), 1, 0)) == []


def test_ranks_that_only_work_in_groups_apart_get_along():
    assert warnings(worked(0, (0, 2), 1, 0), worked(1, (1, 3), 1, 0)) == []
    assert warnings(worked(0, (0, 2), 0, 0), worked(1, (1, 3), 0, 0)) != []


def test_two_hosts_are_not_told_that_nccl_will_refuse():
    (found,) = warnings(on(0), replace(on(1), host="other"))
    assert "does not refuse" in found.explanation
    assert " (GPU-a on h, other)" in found.summary


def test_what_is_not_known_of_a_device_is_not_made_up():
    (found,) = warnings(on(0, count=0, trouble="ECC error"), on(1, chosen=0, local_rank=0))
    assert [each.fact for each in found.evidence] == [
        "device 0 of ? visible, GPU-a; no set_device; CUDA_VISIBLE_DEVICES not set; LOCAL_RANK not set",
        "ECC error",
        "device 0 of 4 visible, GPU-a; set_device(0); CUDA_VISIBLE_DEVICES not set; LOCAL_RANK 0",
    ]


def test_the_whole_judge_says_so():
    (found,) = judge(snapshot(on(0), on(1)))
    assert found.cause is Cause.DUPLICATE_DEVICE
