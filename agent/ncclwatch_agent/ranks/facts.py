"""Keeps what a rank has said of itself, and says whether it is news. Read once for each text that its ring holds."""

from ncclwatch.contract.groups import text_key
from ncclwatch.contract.model.devices import DeviceView
from ncclwatch.contract.ring import facts
from ncclwatch.contract.ring.facts import Facts
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.reader import Ring, Words
from ncclwatch.contract.ring.views import age_s
from ncclwatch_agent.gpu.node_gpus import NodeGpus, slow_of, with_node

NEWS_S = 60.0  # what a rank found out about itself deserves a look for so long


class RankFacts:
    """The facts in one ring, and what the node adds to them."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._text_id = 0
        self._told = Facts()
        self._node = NodeGpus()
        self.device: DeviceView | None = None  # None: the rank has said nothing of one
        self._key = 0
        self.gpu_slow = 0  # GpuSlow bits of its device

    def read(self, node: NodeGpus | None = None, words: Words | None = None) -> Facts:
        """Read what is new, from the ring or from the node; returns what the rank said itself."""
        text_id = (words or self._ring.words())[Word.FACTS]
        node = self._node if node is None else node
        if text_id != self._text_id or node is not self._node:
            self._text_id, self._node = text_id, node
            self._told = facts.parse(self._ring.string(text_id))
            self.device = with_node(self._told.device, node) if self._told.device is not None else None
            self._key = exclusive_key(self.device)
            self.gpu_slow = int(slow_of(self.device, node)) if self.device is not None else 0
        return self._told

    def row(self, now_ns: int, words: Words | None = None) -> tuple[int, int]:
        """Return the values of `device` and `noted` in a digest."""
        told = self.read(words=words)
        fresh = told.rng is not None and age_s(now_ns, told.rng_ns) <= NEWS_S
        return self._key, int(fresh)


def exclusive_key(device: DeviceView | None) -> int:
    """Return a number that stands for a device which no other rank may use, 0 for one that may be shared."""
    return text_key(device.uuid) if device is not None and device.uuid and device.exclusive else 0
