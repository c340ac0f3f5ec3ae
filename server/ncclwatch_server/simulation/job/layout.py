"""Lays out which ranks of a simulated job share which process groups.

The order of ranks is Megatron's: tensor-parallel neighbours lie side by side (so on one node), then data-parallel
ones, then pipeline stages. Experts are spread over blocks of data-parallel neighbours.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class Axis(Enum):
    """Along what the members of a group differ. The value is what the group is called."""

    TENSOR = "tp"
    PIPELINE = "pp"
    DATA = "dp"
    EXPERT = "ep"
    EXPERT_DATA = "edp"  # the copies of one expert
    MODEL = "mp"  # all parts of one copy of the model
    STAGE = "tp-dp"  # all of one pipeline stage
    WORLD = "world"


AXES = tuple(Axis)
_OWN_NAMES = "names=own"
WORLD_NAME = "0"  # torch's name of the default group


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many ways a job is parallel. `experts` is the size of an expert-parallel group and divides `data`."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    node: int = 8  # ranks of one machine
    own_names: bool = False  # ranks make only their own groups, so that all along one axis have one name

    def __post_init__(self) -> None:
        """Raise `ValueError` if no job can be laid out so."""
        if min(self.tensor, self.pipeline, self.data, self.expert, self.node) < 1:
            raise ValueError(f"every size of a layout is at least 1: {self}")
        if self.data % self.expert:
            raise ValueError(f"ep={self.expert} does not divide dp={self.data}: experts are spread over whole blocks")

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Return the layout that "tp=8,pp=4,dp=32,ep=8" stands for, perhaps with ",names=own".

        Raises `ValueError` with a sentence.
        """
        names = {"tp": "tensor", "pp": "pipeline", "dp": "data", "ep": "expert", "node": "node"}
        sizes: dict[str, int] = {}
        parts = [part.strip() for part in text.split(",")]
        for part in (part for part in parts if part != _OWN_NAMES):
            name, _, size = part.partition("=")
            if name.strip() not in names or not size.strip().isdigit():
                raise ValueError(f"{part!r} is no part of a layout; write for example tp=8,pp=4,dp=32,ep=8")
            sizes[names[name.strip()]] = int(size)
        return cls(**sizes, own_names=_OWN_NAMES in parts)

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        named = f",{_OWN_NAMES}" if self.own_names else ""
        return f"tp={self.tensor},pp={self.pipeline},dp={self.data},ep={self.expert}{named}"

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return a rank's (tensor, data, pipeline) coordinates."""
        rest, tensor = divmod(rank, self.tensor)
        pipeline, data = divmod(rest, self.data)
        return tensor, data, pipeline

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return rank // (self.tensor * self.data)

    def neighbour(self, rank: int, stages: int) -> int:
        """Return the rank at the same place of another stage, that many stages on."""
        return rank + stages * self.tensor * self.data

    def size(self, axis: Axis) -> int:
        """Return how many members a group along an axis has."""
        return {
            Axis.TENSOR: self.tensor,
            Axis.PIPELINE: self.pipeline,
            Axis.DATA: self.data,
            Axis.EXPERT: self.expert,
            Axis.EXPERT_DATA: self.data // self.expert,
            Axis.MODEL: self.tensor * self.pipeline,
            Axis.STAGE: self.tensor * self.data,
            Axis.WORLD: self.world_size,
        }[axis]

    def number(self, axis: Axis, rank: int) -> int:
        """Return which of the groups along an axis a rank is in, counted from 0."""
        tensor, data, pipeline = self.place(rank)
        return {
            Axis.TENSOR: pipeline * self.data + data,
            Axis.PIPELINE: data * self.tensor + tensor,
            Axis.DATA: pipeline * self.tensor + tensor,
            Axis.EXPERT: (pipeline * (self.data // self.expert) + data // self.expert) * self.tensor + tensor,
            Axis.EXPERT_DATA: (pipeline * self.expert + data % self.expert) * self.tensor + tensor,
            Axis.MODEL: data,
            Axis.STAGE: pipeline,
            Axis.WORLD: 0,
        }[axis]

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes along which there is somebody to talk to, in the order in which the groups are made."""
        return (Axis.WORLD, *(axis for axis in AXES if axis is not Axis.WORLD and self.size(axis) > 1))

    @cached_property
    def members(self) -> dict[Axis, tuple[tuple[int, ...], ...]]:
        """The ranks of every group, by axis and number."""
        found: dict[Axis, tuple[tuple[int, ...], ...]] = {}
        for axis in self.axes:
            lists: list[list[int]] = [[] for _ in range(self.world_size // self.size(axis))]
            for rank in range(self.world_size):
                lists[self.number(axis, rank)].append(rank)
            found[axis] = tuple(tuple(ranks) for ranks in lists)
        return found

    @cached_property
    def _first_names(self) -> dict[Axis, int]:
        first: dict[Axis, int] = {}
        following = 1
        for axis in self.axes[1:]:
            first[axis] = following
            following += self.world_size // self.size(axis)
        return first

    def name(self, axis: Axis, number: int) -> str:
        """Return what torch calls a group: each rank numbers them as it makes them, the default group first."""
        if self.own_names:
            return str(self.axes.index(axis))
        return WORLD_NAME if axis is Axis.WORLD else str(self._first_names[axis] + number)
