"""How a loop splits its data is told once, at its first pass, in words that ranks which do it right have in common."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402 - needs torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler  # noqa: E402

from ncclwatch.contract import config  # noqa: E402
from ncclwatch.contract.model import preflight  # noqa: E402
from ncclwatch.contract.model.preflight import RankFacts, SamplerFacts, parse  # noqa: E402
from ncclwatch.rank.data.samplers import told_of  # noqa: E402
from ncclwatch.rank.patches import training  # noqa: E402
from ncclwatch.rank.patches.patching import Patches  # noqa: E402
from ncclwatch.rank.recorder import Recorder  # noqa: E402
from ncclwatch.rank.ring.ringfile import RingFile  # noqa: E402

DATA = list(range(10))


def split(rank: int, parts: int = 4, **options: object) -> "DistributedSampler[int]":
    return DistributedSampler(DATA, num_replicas=parts, rank=rank, **options)


def loader(rank: int, parts: int = 4, **options: object) -> "DataLoader[int]":
    return DataLoader(DATA, sampler=split(rank, parts, **options))


def test_the_sampler_of_a_loader_says_its_parts_its_length_and_its_order():
    assert told_of(loader(1, shuffle=True, seed=7), 1, 1, 4) == {
        "kind": "DistributedSampler", "parts": 4, "part": "own", "samples": 10, "length": 3,
        "order": "shuffled with seed 7",
    }  # fmt: skip
    told = told_of(loader(1, shuffle=False), 1, 1, 4)
    assert told is not None
    assert told["order"] == "not shuffled"


@pytest.mark.parametrize(
    ("part", "rank", "local_rank", "world", "said"),
    [
        (5, 5, 1, 8, "own"),
        (0, 5, 1, 8, "first"),
        (1, 5, 1, 8, "local"),
        (3, 5, 1, 8, "other"),
        (0, 0, 0, 8, "own"),
        (5, 5, 1, 16, ""),  # ranks of one tensor-parallel group read one part
    ],
)
def test_a_part_is_told_by_what_it_has_to_do_with_the_rank(
    part: int, rank: int, local_rank: int, world: int, said: str
):
    told = told_of(loader(part, parts=8), rank, local_rank, world)
    assert told is not None
    assert told["part"] == said


class Shard(BatchSampler):
    """What Accelerate puts round a sampler of batches."""

    def __init__(self, batches: BatchSampler, parts: int, part: int) -> None:
        self.batch_sampler, self.num_processes, self.process_index = batches, parts, part

    def __len__(self) -> int:
        return len(self.batch_sampler) // self.num_processes


def test_samplers_of_batches_are_looked_into_and_the_outermost_that_splits_counts():
    batches = BatchSampler(RandomSampler(DATA), 1, drop_last=False)
    told = told_of(DataLoader(DATA, batch_sampler=Shard(batches, 2, 1)), 1, 1, 2)
    assert told == {"kind": "Shard", "parts": 2, "part": "own", "samples": 0, "length": 5, "order": ""}
    inner = told_of(DataLoader(DATA, batch_sampler=BatchSampler(split(1), 2, drop_last=False)), 1, 1, 4)
    assert inner is not None
    assert inner["kind"] == "DistributedSampler"


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(DATA)


def test_what_splits_nothing_is_not_told():
    for found in (DataLoader(DATA, shuffle=True), DataLoader(Endless()), DataLoader(DATA, batch_size=None), DATA):
        assert told_of(found, 0, 0, 4) is None


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    found = Recorder(RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(1, 1), attempt=0))
    patches = Patches()
    training.install(patches, lambda: found)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield found
    dist.destroy_process_group()
    patches.restore()


def said(recorder: Recorder) -> RankFacts:
    recorder.preflight.publish()
    return parse(Path(recorder.ring.path + config.FACTS_SUFFIX).read_text())


def one_pass(batches: "DataLoader[int]") -> None:
    for _ in batches:
        pass


def test_a_loop_is_told_at_its_first_pass_with_its_line(recorder: Recorder):
    for _ in range(3):
        one_pass(loader(0, parts=1))
    (told,) = said(recorder).samplers
    assert (told.kind, told.parts, told.part, told.samples) == ("DistributedSampler", 1, preflight.PART_OWN, 10)
    assert told.site[0] == __file__
    assert told.site[2] == "one_pass"


def test_a_sampler_that_raises_is_not_told_and_the_loop_goes_on(recorder: Recorder):
    class Broken(DistributedSampler[int]):
        @property
        def shuffle(self) -> bool:
            raise RuntimeError("not ready")

        @shuffle.setter
        def shuffle(self, value: bool) -> None:
            self.value = value

        def __iter__(self) -> Iterator[int]:
            return iter((1, 2))

    batches = DataLoader(DATA, sampler=Broken(DATA, num_replicas=1, rank=0))
    assert [int(batch) for batch in batches] == [1, 2]
    assert said(recorder).samplers == ()
    assert recorder.loaders.ended


def test_what_a_text_says_of_samplers_is_bounded_and_read_as_far_as_it_makes_sense():
    good = {"site": ["/u/train.py", 3, "main"], "kind": "S", "parts": 2, "part": "own", "samples": 9, "length": 5}
    text = {"samplers": [good, {**good, "parts": 0}, {**good, "site": None}, 7, {**good, "length": "x"}]}
    whole, cut = parse(json.dumps(text)).samplers
    assert whole == SamplerFacts(("/u/train.py", 3, "main"), "S", 2, "own", 9, 5, "")
    assert cut.length == 0
    assert len(parse(json.dumps({"samplers": [good] * 99})).samplers) == preflight.SAMPLERS_MAX
    assert parse(json.dumps({"samplers": 7})).samplers == ()
