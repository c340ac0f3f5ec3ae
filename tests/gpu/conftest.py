"""What only a GPU can show. Where there is none, every test here is skipped, and says what is missing.

`pytest tests/gpu` on a machine with one GPU runs all but those marked `gpus(2)`.
"""

import pytest

MARK = "gpu"


def missing(count: int) -> str:
    """Return what this machine lacks for a test that needs so many GPUs, "" if nothing."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    if not torch.version.cuda:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device (driver, permissions, CUDA_VISIBLE_DEVICES?)"
    if not (dist.is_available() and dist.is_nccl_available()):
        return f"torch {torch.__version__} is built without NCCL"
    found = torch.cuda.device_count()
    return f"needs {count} GPUs, this machine has {found}" if found < count else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test of this folder, and skip it where it cannot run."""
    here = [item for item in items if "tests/gpu/" in item.nodeid]
    for item in here:
        item.add_marker(MARK)
        needed = item.get_closest_marker("gpus")
        reason = missing(needed.args[0] if needed is not None else 1)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
