"""Which device is a rank on, as far as the rank and its node can tell?"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A rank's CUDA device, and what decided that it is this one."""

    UNKNOWN: ClassVar[int] = -1

    index: int = -1  # as the process numbers its visible devices
    uuid: str = ""  # of the physical GPU, or "MIG-..." of its instance; "" unknown
    chosen: bool = False  # the program called set_device, or named the device in init_process_group
    used: bool = False  # a tensor on this device was handed to a collective
    count: int = 0  # devices that the process sees; 0: unknown
    visible: str | None = None  # CUDA_VISIBLE_DEVICES; None: not set
    local_rank: int = -1  # LOCAL_RANK as the rank has it; -1: not set
    backend: str = ""  # of the default group: "nccl", "gloo", "cpu:gloo,cuda:nccl"
    sharing: str = ""  # what makes it legal that two ranks use one device; "" if nothing does
    trouble: str = ""  # what the node's NVML says is wrong with this device, or why it says nothing

    @property
    def by_nccl(self) -> bool:
        """Whether collectives on this device are NCCL's, which takes no two ranks on one device."""
        return "nccl" in self.backend
