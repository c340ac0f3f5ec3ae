"""The command `ncclwatch doctor`: is everything here that ncclwatch needs, and what is missing?"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import click

from ncclwatch.cli.client import Client, token
from ncclwatch.contract import config
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.ring import RING_BYTES
from ncclwatch.contract.version import TORCH_NEWEST, TORCH_OLDEST, VERSION
from ncclwatch.native import build

_CAP_SYS_PTRACE = 1 << 19


class Health(str, Enum):
    """How a finding stands."""

    OK = "ok"
    NOTE = "note"  # works, with less
    BAD = "BAD"  # does not work


class Finding(NamedTuple):
    """One thing that was looked at."""

    health: Health
    subject: str
    fact: str


def torch_finding() -> Finding:
    """Look at the torch of this environment."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        return Finding(Health.BAD, "torch", f"cannot be imported here ({error}); run this in training's environment")
    version = torch.__version__
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if not dist.is_available():
        return Finding(Health.BAD, "torch", f"{version} was built without torch.distributed: there is nothing to watch")
    if not TORCH_OLDEST <= numbers <= TORCH_NEWEST:
        tried = " to ".join(".".join(map(str, each)) for each in (TORCH_OLDEST, TORCH_NEWEST))
        return Finding(Health.NOTE, "torch", f"{version}; ncclwatch is made for {tried}, so try a short job first")
    return Finding(Health.OK, "torch", version)


def native_finding() -> Finding:
    """Look for the native recorder."""
    try:
        if build.load() is not None:
            return Finding(Health.OK, "native recorder", str(build.built_path()))
    except (ImportError, build.NativeError) as error:
        return Finding(Health.NOTE, "native recorder", f"{error}. The recorder in Python is used")
    return Finding(
        Health.NOTE,
        "native recorder",
        "not built for this torch; the recorder in Python is used. `ncclwatch build-native` makes recording cheaper",
    )


def witness_finding() -> Finding:
    """Look whether torch's Flight Recorder can be asked for what a rank that holds the GIL has issued."""
    subject = "second witness"
    if os.environ.get(config.ENV_WITNESS) == "0":
        return Finding(Health.NOTE, subject, f"none: {config.ENV_WITNESS}=0 keeps ranks from answering")
    if os.environ.get("TORCH_FR_BUFFER_SIZE") == "0":
        return Finding(Health.NOTE, subject, "none: TORCH_FR_BUFFER_SIZE=0 turns torch's Flight Recorder off")
    try:
        from torch._C import _distributed_c10d
    except ImportError:
        return Finding(Health.NOTE, subject, "none: this torch has no torch.distributed")
    if not hasattr(_distributed_c10d, "_WorkerServer"):
        return Finding(Health.NOTE, subject, "none: this torch has no worker server; verdicts rest on ncclwatch alone")
    own = os.environ.get("TORCH_WORKER_SERVER_SOCKET")
    where = f"your own worker server at {own}" if own else f"a unix socket in {config.runtime_dir()}"
    return Finding(Health.OK, subject, f"torch's Flight Recorder, through {where}")


def rings_finding() -> Finding:
    """Look at the directory that rings go to."""
    base = Path(config.runtime_dir()).parent
    try:
        free = shutil.disk_usage(base).free
    except OSError as error:
        return Finding(Health.BAD, "rings", f"{base}: {error.strerror}. Name another in {config.ENV_RUNTIME_DIR}")
    if not os.access(base, os.W_OK):
        return Finding(Health.BAD, "rings", f"{base} is not writable for you. Name another in {config.ENV_RUNTIME_DIR}")
    fact = f"{base}, {free / 1e6:.0f} MB free, {RING_BYTES / 1e6:.1f} MB for each rank"
    return Finding(Health.OK if free > 64 * RING_BYTES else Health.NOTE, "rings", fact)


def stacks_finding() -> Finding:
    """Look whether stacks of ranks can be read from outside."""
    beside = Path(sys.executable).parent / "py-spy"
    if not beside.exists() and shutil.which("py-spy") is None:
        return Finding(Health.NOTE, "stacks", f"no py-spy; run: {sys.executable} -m pip install py-spy")
    scope = _read("/proc/sys/kernel/yama/ptrace_scope").strip()
    capable = bool(int(_field("CapEff", _read("/proc/self/status")) or "0", 16) & _CAP_SYS_PTRACE)
    if scope in ("2", "3") and not capable:
        return Finding(Health.NOTE, "stacks", f"kernel.yama.ptrace_scope is {scope}; run: sudo sysctl -w "
                       "kernel.yama.ptrace_scope=1, else verdicts come without stacks")  # fmt: skip
    return Finding(Health.OK, "stacks", "py-spy may read the stacks of your ranks")


def server_finding() -> Finding:
    """Look for the server."""
    url = config.server_url()
    try:
        Client(url, token()).check()
    except NcclwatchError:
        if os.environ.get(config.ENV_SERVER):
            return Finding(Health.BAD, "server", f"nobody answers at {url}, which {config.ENV_SERVER} names")
        return Finding(Health.NOTE, "server", "none is named; on one machine the agent starts its own")
    return Finding(Health.OK, "server", url)


CHECKS: tuple[Callable[[], Finding], ...] = (
    torch_finding, native_finding, witness_finding, rings_finding, stacks_finding, server_finding,
)  # fmt: skip


def findings() -> Iterator[Finding]:
    """Look at everything, one after the other."""
    yield Finding(Health.OK, "ncclwatch", f"{VERSION}, Python {sys.version.split()[0]}")
    for check in CHECKS:
        yield check()


@click.command()
def doctor() -> None:
    """Say what ncclwatch finds on this machine, and what to do about what is missing.

    Exit code 1 if something does not work.
    """
    bad = False
    for found in findings():
        bad = bad or found.health is Health.BAD
        click.echo(f"{found.health.value:5} {found.subject:16} {found.fact}")
    sys.exit(1 if bad else 0)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _field(name: str, text: str) -> str:
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith(name + ":")), "")
