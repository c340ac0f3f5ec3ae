"""A rank's own number becomes a physical GPU only where that is sure."""

from pathlib import Path

import pytest

from ncclwatch.contract.groups import text_key
from ncclwatch.contract.model.devices import DeviceView
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.checks.facts import Facts
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch_agent.gpu.node_gpus import Gpu, NodeGpus, parse, with_node
from ncclwatch_agent.ranks.facts import NEWS_S, RankFacts

ALIKE = NodeGpus(gpus=tuple(Gpu(uuid=f"GPU-{letter}", name="H100") for letter in "abcd"))
MIXED = NodeGpus(gpus=(Gpu(uuid="GPU-a", name="H100"), Gpu(uuid="GPU-b", name="T4")))


@pytest.mark.parametrize(
    ("index", "visible", "node", "uuid"),
    [
        (1, None, ALIKE, "GPU-b"),
        (1, "2,3", ALIKE, "GPU-d"),
        (0, "GPU-c", ALIKE, "GPU-c"),
        (0, "GPU-", ALIKE, ""),  # begins all of them
        (0, "MIG-1", ALIKE, "MIG-1"),
        (1, "2", ALIKE, ""),  # not visible
        (9, None, ALIKE, ""),
        (-1, None, ALIKE, ""),
        (0, "", ALIKE, ""),
        (0, None, MIXED, ""),  # CUDA puts the fastest first, NVML the lowest address
        (0, None, NodeGpus(failure="Driver Not Loaded"), ""),
    ],
)
def test_a_number_becomes_a_gpu_where_that_is_sure(index: int, visible: str | None, node: NodeGpus, uuid: str):
    assert with_node(DeviceView(index=index, visible=visible), node).uuid == uuid


def test_the_rank_s_own_word_goes_before_the_number():
    assert with_node(DeviceView(index=0, uuid="GPU-d"), ALIKE).uuid == "GPU-d"


def test_what_is_wrong_with_a_gpu_is_told_of_the_rank_that_has_it():
    node = NodeGpus(gpus=(Gpu(uuid="GPU-a", trouble="GPU is lost"), Gpu(uuid="GPU-b")))
    assert with_node(DeviceView(uuid="GPU-a"), node).trouble == "GPU is lost"
    assert with_node(DeviceView(uuid="GPU-b"), node).trouble == ""


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{", b'{"gpus": 3}', b'{"gpus": [1, null]}', b'{"gpus": [{"uuid": 5}]}']
)
def test_an_answer_that_is_none_is_no_error(answer: bytes):
    assert all(gpu == Gpu() for gpu in parse(answer).gpus)


def test_a_digest_tells_a_device_that_is_exclusive_and_what_is_new(tmp_path: Path):
    ring = RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(2, 2), attempt=0)
    told = Facts(ring)
    with Ring(ring.path) as reading:
        found = RankFacts(reading)
        assert found.row(0) == (0, 0)
        told.tell("device", index=1, backend="cuda:nccl", chosen=1)
        assert found.row(0) == (0, 0)  # nobody knows which GPU that is
        found.read(ALIKE)
        assert found.row(0) == (text_key("GPU-b"), 0)
        told.tell("device", sharing="MPS")
        assert found.row(0) == (0, 0)
        told.tell("rng", saved=3, present=2, at_ns=10**9)
        assert found.row(2 * 10**9)[1] == 1
        assert found.row(int((NEWS_S + 2) * 1e9))[1] == 0


@pytest.mark.parametrize("text", ["", "[]", "{", '{"device": 3, "rng": []}', '{"device": {"index": "x", "uuid": 3}}'])
def test_facts_that_are_none_are_left_out(text: str, tmp_path: Path):
    ring = RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(2, 2), attempt=0)
    ring.set_word(Word.FACTS, ring.string(text) if text else 0)
    with Ring(ring.path) as reading:
        found = RankFacts(reading)
        assert found.row(0) == (0, 0)
        assert found.device in (None, DeviceView())
