"""Which torch is recorded: none that is older than those the tests were run with, unless somebody asks for it."""

import warnings

import pytest
import torch

import ncclwatch
from ncclwatch.contract import config
from ncclwatch.contract.version import TORCH_OLDEST
from ncclwatch.rank import attach, torch_versions

OLDEST = ".".join(map(str, TORCH_OLDEST))


@pytest.mark.parametrize(
    ("version", "recorded"),
    [
        ("2.5.1+cu124", False),
        ("1.13.1", False),
        (f"{OLDEST}.0", True),
        (f"{OLDEST}.1+cpu", True),
        ("3.0.0a0+git1", True),
    ],
)
def test_only_an_older_torch_is_left_alone(version: str, recorded: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert (torch_versions.too_old() == "") is recorded


def test_it_is_recorded_where_somebody_asks_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    monkeypatch.setenv(config.ENV_ANY_TORCH, "1")
    assert torch_versions.too_old() == ""


def test_attach_says_so_and_leaves_torch_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    monkeypatch.setattr(attach, "_said", set())
    wait = torch.distributed.Work.wait
    with warnings.catch_warnings(record=True) as told:
        ncclwatch.attach()
    assert "torch 2.5.1 is older than" in str(told[0].message)
    assert torch.distributed.Work.wait is wait
