"""All faults of the table."""

from dataclasses import replace

from tests.chaos.faults import CORE
from tests.chaos.life import STEPS
from tests.chaos.surroundings import FURTHER

_REAL = {  # where the ranks are torchrun's, with torch and gloo
    "stop.rank": ("healthy", "opened"),
    "kill.agent": ("begins", "steady"),
    "stop.agent": ("healthy", "stacks"),
    "kill.server": ("healthy", "notified", "resolved"),
    "stop.server": ("begins", "ends"),
    "frames.cut": ("healthy", "steady"),
}
_WITHOUT_TORCH = (*CORE, *FURTHER)
_WITH_TORCH = tuple(
    replace(fault, name=f"gloo:{fault.name}", real=True, never=frozenset(STEPS) - frozenset(_REAL[fault.name]))
    for fault in _WITHOUT_TORCH
    if fault.name in _REAL
)

FAULTS = (*_WITHOUT_TORCH, *_WITH_TORCH)
