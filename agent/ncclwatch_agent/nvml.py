"""Which GPUs has this node, by the driver's own library? Prints one JSON text and ends.

    python -m ncclwatch_agent.nvml

NVML blocks for ever on some sick GPUs, in a call that nothing interrupts: so it is asked in a process of its own,
which can be left behind (see `gpus`). What it cannot tell is part of the answer.
"""

import json
import sys

import pynvml

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
    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        return found | ({"trouble": str(error)} if error.value in _SICK else {})
    except pynvml.NVMLLibraryMismatchError:
        return found
    return found


if __name__ == "__main__":
    json.dump(look(), sys.stdout)
