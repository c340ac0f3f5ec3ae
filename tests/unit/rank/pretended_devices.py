"""Devices that a torch without CUDA pretends to have: as far as random states go, a device is its generator."""

from types import SimpleNamespace

import pytest
import torch


def pretend(monkeypatch: pytest.MonkeyPatch, count: int, current: int = 0) -> tuple[torch.Generator, ...]:
    """Let this process see so many devices, and return their generators."""
    generators = tuple(torch.Generator() for _ in range(count))
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: 0)
    uuids = [f"8e2f0a1c-0000-0000-0000-{number:012d}" for number in range(count)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index]))
    return generators


def states(count: int) -> list[torch.Tensor]:
    """Return the states of so many devices of an earlier run, each another one."""
    return [torch.Generator().manual_seed(100 + number).get_state() for number in range(count)]
