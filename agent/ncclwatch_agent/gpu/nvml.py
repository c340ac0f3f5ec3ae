"""Prints the GPUs of this node, by the driver's own library, as one JSON text, and ends.

    python -m ncclwatch_agent.gpu.nvml

NVML blocks for ever on some sick GPUs, in a call that nothing interrupts: so it is asked in a process of its own,
which can be left behind (see `gpu.node_gpus`). What it cannot tell is part of the answer.
"""

import json
import sys
from collections.abc import Callable

import pynvml

from ncclwatch.contract.model.devices import CLOCKS_LOW, GpuSlow

# What makes a GPU useless to a job. That a property is not supported by a GPU says nothing of its health.
_SICK = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_IRQ_ISSUE)
GPUS_MAX = 256


def look() -> dict[str, object]:
    """Return the GPUs in the order of NVML (of their PCI addresses), or why they cannot be listed."""
    try:
        pynvml.nvmlInit()
        count = min(pynvml.nvmlDeviceGetCount(), GPUS_MAX)
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
        return {"failure": str(error)}
    return {"gpus": [_gpu(index) for index in range(count)]}


def _gpu(index: int) -> dict[str, object]:
    found: dict[str, object] = {}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        found["uuid"] = pynvml.nvmlDeviceGetUUID(handle)
        found["name"] = pynvml.nvmlDeviceGetName(handle)
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
        return found | {"trouble": str(error)}
    found["slow"] = int(_slow(handle))
    try:
        found["pci"] = pynvml.nvmlDeviceGetPciInfo(handle).busId
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        found["pci"] = ""
    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        return found | ({"trouble": str(error)} if error.value in _SICK else {})
    except pynvml.NVMLLibraryMismatchError:
        return found
    return found


def _slow(handle: object) -> GpuSlow:
    """Return what slows a GPU down. What it does not support, or an older library does not know, is no trouble."""
    reasons = _told(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    clock = _told(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
    highest = _told(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
    errors = _told(
        lambda: pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        )
    )
    return slow_by(reasons, clock, highest, errors)


def slow_by(reasons: int, clock: int, highest: int, errors: int) -> GpuSlow:
    """Return what slows a GPU down, by NVML's reasons for its clocks, its clocks in MHz, and its memory errors.

    That software keeps it within its power limit is how a busy GPU runs, and by itself says nothing.
    """
    found = GpuSlow(0)
    if reasons & (pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown):
        found |= GpuSlow.THERMAL
    elif reasons & (pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown | pynvml.nvmlClocksThrottleReasonHwSlowdown):
        found |= GpuSlow.POWER
    idle = reasons & pynvml.nvmlClocksThrottleReasonGpuIdle
    if reasons and not idle and 0 < clock < CLOCKS_LOW * highest:
        found |= GpuSlow.CLOCKS
    return found | (GpuSlow.MEMORY if errors else GpuSlow(0))


def _told(question: Callable[[], int]) -> int:
    try:
        return int(question())
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, TypeError, ValueError):
        return 0


if __name__ == "__main__":
    json.dump(look(), sys.stdout)
