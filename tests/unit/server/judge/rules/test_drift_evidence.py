"""What a warning of unlike ranks rests on, and whom it names."""

from dataclasses import replace

from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server.judge import judge
from tests.scenarios.texts import situation


def told(text: str) -> Verdict:
    (found,) = judge(situation(text).snapshot())
    return found


def test_each_side_tells_how_it_cut_the_model_into_units() -> None:
    found = told("""
world 3
facts 0-2 backend=gloo
wrapped 0,2 FSDP2 0-2 used "0.weight float32 8x8" / "1.weight float32 8x8"
wrapped 1 FSDP2 0-2 used "0.weight float32 8x8" "1.weight float32 8x8"
""")
    assert sorted(each.fact.partition(", the last")[0] for each in found.evidence) == [
        "FSDP2 for ranks 0-2 wraps 2 parameters",
        "FSDP2 for ranks 0-2 wraps 2 parameters in 2 units",
    ]


def test_a_clock_is_shown_of_each_host_whose_ranks_are_known() -> None:
    found = told("""
world 3 hosts 3
facts 0-2 backend=gloo launcher=elastic
clock node0 0
clock node1 40.2
clock node2 0
clock node7 0
clock node8 -50
""")
    assert "node8 by 50 s behind, node1 by 40 s ahead, with rank 1." in found.summary
    assert [(each.rank, each.fact) for each in found.evidence] == [(1, "clock +40 s")]


def test_who_is_named_is_named_with_process_and_device_as_far_as_a_view_tells_them() -> None:
    snapshot = situation("world 4\nfacts 0-3 backend=nccl\nfacts 2-3 NCCL_ALGO=Ring").snapshot()
    views = {rank: replace(view, device=f"cuda:{rank}") for rank, view in snapshot.ranks.items() if rank != 3}
    (found,) = judge(replace(snapshot, ranks=views))
    assert [(each.rank, each.pid, each.device) for each in found.culprits if each.rank > 1] == [
        (2, snapshot.ranks[2].pid, "cuda:2"),
        (3, 0, ""),
    ]


def test_who_is_set_up_otherwise_in_one_setting_or_in_several_is_named_with_them() -> None:
    one = told("world 3\nfacts 0-2 backend=nccl\nfacts 2 NCCL_ALGO=Ring")
    assert [each.doing for each in one.culprits] == ["set up with another NCCL_ALGO"]
    two = told("world 3\nfacts 0-2 backend=nccl\nfacts 2 NCCL_ALGO=Ring NCCL_PROTO=LL")
    assert [each.doing for each in two.culprits] == ["set up otherwise: NCCL_ALGO, NCCL_PROTO"]
