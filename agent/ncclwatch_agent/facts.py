"""What has a rank said of itself, and is it news? Read once for each text that its ring holds."""

from ncclwatch.contract import facts
from ncclwatch.contract.devices import DeviceView
from ncclwatch.contract.facts import Facts
from ncclwatch.contract.ring import Ring
from ncclwatch.contract.wire import group_key
from ncclwatch_agent.views import age_s

NEWS_S = 60.0  # what a rank found out about itself deserves a look for so long


class RankFacts:
    """The facts in one ring."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._text_id = 0
        self._known = Facts()
        self._key = 0

    def known(self, text_id: int) -> Facts:
        """Return what the text with this id says."""
        if text_id != self._text_id:
            self._text_id, self._known = text_id, facts.parse(self._ring.string(text_id))
            self._key = exclusive_key(self._known.device)
        return self._known

    def device(self, text_id: int) -> DeviceView | None:
        """Return the rank's device, None if it has said nothing of one."""
        return self.known(text_id).device

    def row(self, text_id: int, now_ns: int) -> tuple[int, int]:
        """Return the values of `device` and `noted` in a digest."""
        known = self.known(text_id)
        fresh = known.rng is not None and age_s(now_ns, known.rng_ns) <= NEWS_S
        return self._key, int(fresh)


def exclusive_key(device: DeviceView | None) -> int:
    """Return a number that stands for a device which no other rank may use, 0 for one that may be shared."""
    if device is None or not device.uuid or not device.by_nccl or device.sharing:
        return 0
    return group_key(device.uuid)
