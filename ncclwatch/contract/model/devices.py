"""The device that a rank is on, as far as the rank and its node can tell."""

from dataclasses import dataclass
from enum import IntFlag


class GpuSlow(IntFlag):
    """What makes a GPU slower than others of its kind, by NVML or by the kernel log."""

    THERMAL = 1  # its clocks are lowered because it is hot
    POWER = 2  # because its power supply or board says so
    CLOCKS = 4  # it runs at less than CLOCKS_LOW of its highest clock, and not for want of work
    MEMORY = 8  # memory errors that nothing corrected since the driver was loaded, or rows that cannot be replaced
    XID = 16  # the driver wrote an error of it into the kernel log


CLOCKS_LOW = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A rank's CUDA device, and what decided that it is this one."""

    index: int = -1  # as the process numbers its visible devices; -1: unknown
    uuid: str = ""  # of the physical GPU, or "MIG-..." of its instance; "" unknown
    chosen: int = -1  # index that set_device was given, or init_process_group; -1: none
    used: bool = False  # a tensor on device `index` was handed to a collective of NCCL
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

    @property
    def exclusive(self) -> bool:
        """Whether NCCL will be given this device, and nothing says that it may be shared.

        A group with two backends may be used for tensors on the host alone: there, choosing a device says nothing.
        """
        return self.by_nccl and not self.sharing and (self.used or "cpu:" not in self.backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    """Ranks that NCCL found on one GPU, by its log. `ranks` may be empty: newer versions do not name them."""

    ranks: tuple[int, ...]
    device: str
    host: str
    path: str
