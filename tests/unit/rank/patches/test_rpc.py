"""A program that begins to use RPC is told that its calls are not watched, and is served all the same."""

import sys
import types

import pytest

torch = pytest.importorskip("torch")

from ncclwatch.rank.patches import rpc  # noqa: E402 - needs torch
from ncclwatch.rank.patches.patching import Patches  # noqa: E402


def began(monkeypatch: pytest.MonkeyPatch, recorder: object) -> tuple[object, list[str]]:
    """Return what init_rpc returned, and what was told."""
    module, told, patches = types.ModuleType("rpc_of_torch"), [], Patches()
    module.init_rpc = lambda name: f"begun as {name}"
    monkeypatch.setitem(sys.modules, "torch.distributed.rpc", module)
    rpc.install(patches, lambda: recorder, lambda sentence, subject: told.append(sentence))
    result = module.init_rpc("w0")
    patches.restore()
    return result, told


def test_init_rpc_says_that_it_is_not_watched(monkeypatch: pytest.MonkeyPatch):
    assert began(monkeypatch, object()) == ("begun as w0", [rpc.NOT_SEEN])


def test_nothing_is_said_when_nobody_watches(monkeypatch: pytest.MonkeyPatch):
    assert began(monkeypatch, None) == ("begun as w0", [])


def test_torch_has_the_name_that_is_patched():
    import torch.distributed.rpc as real

    assert callable(real.init_rpc)
