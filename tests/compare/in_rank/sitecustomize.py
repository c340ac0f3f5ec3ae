"""Runs in each rank that is looked at with the tools of others; Python imports it at its start, by its name.

Groups that are made without a timeout get that of COMPARE_TIMEOUT_S. Once the file `dump` is in COMPARE_DIR, the rank
writes its Flight Recorder to `raw/fr_RANK` there, as torch does when a collective of NCCL times out, and to
`repaired/fr_RANK` with what is missing where gloo's operations are recorded: the groups, and what has completed.
"""

import importlib.abc
import importlib.machinery
import os
import pickle
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

DISTRIBUTED = "torch.distributed.distributed_c10d"
LOOK_S = 0.1


class _WithTimeout(importlib.abc.MetaPathFinder):
    """Gives groups another timeout once torch.distributed is imported."""

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> object:
        """Return the module's spec, with a loader that sets the timeout."""
        if name != DISTRIBUTED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        from datetime import timedelta

        super().exec_module(module)
        timeout = timedelta(seconds=float(os.environ["COMPARE_TIMEOUT_S"]))
        module._get_default_timeout = lambda backend: timeout  # type: ignore[attr-defined]


def _dump_when_asked(directory: Path, rank: str) -> None:
    while not (directory / "dump").exists():
        time.sleep(LOOK_S)
    distributed = sys.modules.get("torch._C._distributed_c10d")
    if distributed is None:
        return
    dump = distributed._dump_fr_trace()
    for name, content in (("raw", dump), ("repaired", _repaired(dump))):
        written = directory / f"part_{name}_{rank}"
        written.write_bytes(content)
        written.rename(directory / name / f"fr_{rank}")


def _repaired(dump: bytes) -> bytes:
    world = sys.modules[DISTRIBUTED]._world  # type: ignore[attr-defined]
    found = pickle.loads(dump)
    found["pg_config"] = {
        name: {"name": name, "desc": group.group_desc, "ranks": str(sorted(world.pg_group_ranks[group]))}
        for group, name in world.pg_names.items()
        if group in world.pg_group_ranks
    }
    for entry in found["entries"]:
        if entry["retired"]:
            entry["state"] = "completed"
    return pickle.dumps(found)


if "RANK" in os.environ and "COMPARE_DIR" in os.environ:
    threading.Thread(
        target=_dump_when_asked, args=(Path(os.environ["COMPARE_DIR"]), os.environ["RANK"]), daemon=True
    ).start()
    if "COMPARE_TIMEOUT_S" in os.environ:
        sys.meta_path.insert(0, _WithTimeout())
