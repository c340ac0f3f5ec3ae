"""Which device is a rank on, as far as the rank and its node can tell?"""

from dataclasses import dataclass


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
