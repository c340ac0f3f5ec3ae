"""Checks the variables of this environment that hide hangs, or make them."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ncclwatch.cli.doctor.check import Check, failed, passed, warned
from ncclwatch.contract.machine import resources

HEARTBEAT_S = (60, 3600)  # of NCCL's watchdog: below, a slow host dies of it; above, a dead one is not noticed


class _Setting(NamedTuple):
    """A variable, when it is a mistake, what comes of it, and what to do."""

    variable: str
    wrong: Callable[[str], bool]
    fate: str
    fix: str


def _off(value: str) -> bool:
    return value.strip().lower() in ("0", "false", "no", "off")


def _on(value: str) -> bool:
    return value.strip() != "" and not _off(value)


def _absurd(value: str) -> bool:
    return not value.strip().isdigit() or not HEARTBEAT_S[0] <= int(value) <= HEARTBEAT_S[1]


_SETTINGS = (
    _Setting(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING", _off,
        "a collective that fails or times out ends nothing: the job hangs until somebody kills it", "unset it",
    ),
    _Setting(
        "NCCL_ASYNC_ERROR_HANDLING", _off,
        "the old name of TORCH_NCCL_ASYNC_ERROR_HANDLING: where torch still reads it, the job hangs after an error",
        "unset it",
    ),
    _Setting(
        "TORCH_NCCL_ENABLE_MONITORING", _off,
        "nobody notices that NCCL's watchdog itself is stuck, and the process never ends", "unset it",
    ),
    _Setting(
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", _absurd,
        f"outside of {HEARTBEAT_S[0]} to {HEARTBEAT_S[1]} s the monitor kills slow hosts, or never notices stuck ones",
        "unset it (480 s), or set it to a few minutes",
    ),
    _Setting(
        "NCCL_IGNORE_NET_MISMATCH", _on,
        "NCCL goes on where two nodes have other adapters, and may hang without a word (NVIDIA/nccl#2428)",
        "unset it, and give all nodes the same adapters in NCCL_IB_HCA",
    ),
    _Setting(
        "TORCH_DISTRIBUTED_DEBUG", lambda value: value.strip().upper() == "DETAIL",
        "every collective is compared first: slow, and a hang at init where one rank has not got it",
        "unset it where nobody debugs, or see that all ranks have it",
    ),
    _Setting(
        "CUDA_LAUNCH_BLOCKING", _on,
        "each kernel is waited for: a collective blocks its host, so streams that could overlap may block each other",
        "unset it where nobody debugs",
    ),
)  # fmt: skip


def settings(environ: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Look at the variables that hide hangs or make them."""
    wrong = [each for each in _SETTINGS if each.variable in environ and each.wrong(environ[each.variable])]
    for each in wrong:
        said = f"{each.variable}={environ[each.variable][:60]}"
        yield warned("settings", f"{said}: {each.fate}", each.fix)
    if not wrong:
        yield passed("settings", "no variable that is known to hide hangs")


def interfaces(environ: Mapping[str, str] = os.environ, names: Sequence[str] | None = None) -> Check:
    """Look whether this node has the network interfaces that are chosen."""
    name, here = "interfaces", resources.interfaces() if names is None else names
    for variable, unmet in (
        ("NCCL_SOCKET_IFNAME", resources.nccl_takes_none),
        ("GLOO_SOCKET_IFNAME", resources.gloo_lacks),
    ):
        choice = environ.get(variable, "")
        if choice and unmet(choice, here):
            return failed(
                name,
                f"{variable}={choice}, and this node has {', '.join(here)}: the first connection fails",
                f"set {variable} to one of these, or unset it",
            )
    return passed(name, ", ".join(here) or "nobody tells their names")
