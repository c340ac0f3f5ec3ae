"""What a job may never import is patched when it imports it, and costs nothing before."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ncclwatch.rank.patches.imports import when_imported
from ncclwatch.rank.patches.patching import Patches


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module that can be imported, and is not yet."""
    (tmp_path / "seldom_used.py").write_text("ready = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "seldom_used", raising=False)
    return "seldom_used"


def _imported(name: str) -> object:
    return __import__(name)


def test_both_who_wait_are_called_once_in_their_order_when_the_module_is_ready(module: str):
    patches, seen = Patches(), []
    for waiting in ("first", "second"):
        when_imported(patches, module, lambda who=waiting: seen.append((who, sys.modules[module].ready)))
    before = list(sys.meta_path)
    assert seen == []
    _imported(module)
    _imported(module)
    assert seen == [("first", True), ("second", True)]
    assert len(sys.meta_path) == len(before) - 2


def test_a_module_that_is_there_already_is_patched_at_once(module: str):
    patches, seen = Patches(), []
    _imported(module)
    before = list(sys.meta_path)
    when_imported(patches, module, lambda: seen.append(1))
    assert seen == [1]
    assert sys.meta_path == before


def test_nothing_is_called_after_restore(module: str):
    patches, seen = Patches(), []
    before = list(sys.meta_path)
    when_imported(patches, module, lambda: seen.append(1))
    patches.restore()
    _imported(module)
    assert seen == []
    assert sys.meta_path == before


def test_nothing_is_called_when_restored_in_the_middle_of_the_import(module: str):
    patches, seen = Patches(), []
    when_imported(patches, module, lambda: seen.append(1))
    spec = importlib.util.find_spec(module)
    patches.restore()
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert seen == []


def test_an_import_never_fails_for_us(module: str):
    def fails() -> None:
        raise RuntimeError("a version of torch that keeps it elsewhere")

    when_imported(Patches(), module, fails)
    assert _imported(module).ready
    assert sys.modules[module].ready


def test_attach_imports_no_part_of_torch_that_the_job_did_not_and_fsdp_has_its_names_when_it_comes():
    program = """
import sys, torch.distributed
before = set(sys.modules)
import ncclwatch
ncclwatch.attach(native=False)
print(sorted(name for name in set(sys.modules) - before if name.startswith("torch.")))
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
ours = FSDP.forward, FSDPParamGroup.unshard
ncclwatch.detach()
print([hasattr(f, "__wrapped__") for f in ours], FSDP.forward in ours, FSDPParamGroup.unshard in ours)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[True, True] False False"], done.stderr
