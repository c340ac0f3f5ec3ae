"""Checks that this node, or this container of it, gives ranks and agent what they need."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from ncclwatch.cli.doctor.check import Check, failed, passed, warned
from ncclwatch.contract import config
from ncclwatch.contract.machine import resources
from ncclwatch.contract.machine.private_dirs import NotPrivateError, PrivateDir, open_private, require_memory
from ncclwatch.contract.ring.layout import RING_BYTES
from ncclwatch.contract.undecodable import UNDECODABLE

SHM_SMALL_MB = 64  # what docker gives without --shm-size
SHM_ENOUGH_MB = 512
FILES_ENOUGH = 4096
LOOK_S_MAX = 20.0  # for one stack; it takes a tenth of a second
NVML_S_MAX = 10.0
_SHM_FIX = (
    "start the container with --shm-size=8g or --ipc=host; Kubernetes: mount an emptyDir of medium Memory at /dev/shm"
)
_TRACE_FIX = (
    "docker: --cap-add=SYS_PTRACE; Kubernetes: securityContext: {capabilities: {add: [SYS_PTRACE]}}; a host with "
    "Yama: sudo sysctl -w kernel.yama.ptrace_scope=1. Without it ranks tell their own Python stacks, unless they "
    "hold the GIL"
)


def runtime_directory(environ: Mapping[str, str] = os.environ) -> Check:
    """Look at the directory that rings go to."""
    name, directory = "runtime directory", Path(config.runtime_dir(environ))
    base = directory if directory.is_dir() else directory.parent
    fix = f"name another directory in {config.ENV_RUNTIME_DIR}, the same for all processes of the node"
    try:
        free = shutil.disk_usage(base).free
    except OSError as error:
        return failed(name, f"{base}: {error.strerror}", fix)
    if not os.access(base, os.W_OK | os.X_OK):
        return failed(name, f"{base} is not writable for you", fix)
    try:
        with _place(directory, base) as place:
            require_memory(place)
    except NotPrivateError as error:
        return failed(name, str(error), fix)
    except OSError as error:
        return failed(name, f"{directory}: {error.strerror}", fix)
    fact = f"{directory}, {free / 1e6:.0f} MB free, {RING_BYTES / 1e6:.1f} MB for each rank"
    if free < 2 * RING_BYTES:
        return failed(name, fact, f"free some space there, or {fix}")
    if free < 64 * RING_BYTES:
        return warned(name, fact, f"on a node with many ranks free some space there, or {fix}")
    return passed(name, fact)


def _place(directory: Path, base: Path) -> PrivateDir:
    """Open the directory of rings, or where the first rank will make it."""
    if base == directory or directory.is_symlink():
        return open_private(str(directory))
    return PrivateDir(str(base), os.open(base, os.O_RDONLY | os.O_DIRECTORY))


def shared_memory(size_mb: int | None = None) -> Check:
    """Look at the size of /dev/shm, which NCCL and DataLoader workers need."""
    name = "/dev/shm"
    found = resources.shm_mb() if size_mb is None else size_mb
    if found is None:
        return failed(name, "there is none", _SHM_FIX)
    if found <= SHM_SMALL_MB:
        return warned(
            name, f"{found} MB: worker processes of a DataLoader and NCCL fill it, and die with a bus error", _SHM_FIX
        )
    return passed(name, f"{found} MB") if found >= SHM_ENOUGH_MB else warned(name, f"{found} MB is little", _SHM_FIX)


def stacks(refusal: str | None = None) -> Check:
    """Read the stack of a process of our own, as the agent reads those of ranks."""
    name = "stacks"
    beside = Path(sys.executable).parent / "py-spy"
    tool = str(beside) if beside.exists() else shutil.which("py-spy")
    if tool is None:
        return warned(name, "there is no py-spy", f"run: {sys.executable} -m pip install py-spy")
    refused = resources.ptrace_refusal() if refusal is None else refusal
    if refused:
        return warned(name, f"{refused}: nobody may read the stacks of ranks from outside", _TRACE_FIX)
    trouble = try_to_read_a_stack(tool)
    if trouble:
        return warned(name, f"py-spy could not read the stack of a process of yours: {trouble}", _TRACE_FIX)
    return passed(name, f"{tool} reads the stacks of your processes")


def try_to_read_a_stack(tool: str) -> str:
    """Return why py-spy cannot read the stack of a child of ours, "" if it can."""
    child = subprocess.Popen(
        [sys.executable, "-c", "print('ready', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        child.stdout.readline()
        command = [tool, "dump", "--nonblocking", "--pid", str(child.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {LOOK_S_MAX:.0f} s"
    except OSError as error:
        return str(error)
    finally:
        child.kill()
        child.communicate()
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it says nothing"])[0]


class _Gpu(msgspec.Struct):
    uuid: str = ""
    trouble: str = ""


class _Gpus(msgspec.Struct):
    """What `python -m ncclwatch_agent.gpu.nvml` prints."""

    gpus: tuple[_Gpu, ...] = ()
    failure: str = ""


def gpus(driver: str | None = None, ask: "Callable[[], bytes | None] | None" = None) -> Check:
    """Look at the driver and its library, in a child: NVML blocks for ever on some sick GPUs."""
    name = "GPUs"
    version = resources.nvidia_driver() if driver is None else driver
    if not version:
        return passed(name, "no NVIDIA driver is loaded here; nothing to look at")
    fix = "run nvidia-smi on this node; reset or drain it, and look for Xid errors in dmesg"
    answer = (ask or _ask_nvml)()
    if answer is None:
        return failed(name, f"driver {version}: NVML does not answer within {NVML_S_MAX:.0f} s", fix)
    try:
        found = msgspec.json.decode(answer, type=_Gpus)
    except UNDECODABLE:
        return warned(name, f"driver {version}: its library could not be asked", "install nvidia-ml-py again")
    if found.failure:
        return failed(name, f"driver {version}: {found.failure}", fix)
    sick = [gpu for gpu in found.gpus if gpu.trouble]
    if sick:
        return failed(name, f"driver {version}: {sick[0].uuid or 'a GPU'}: {sick[0].trouble}", fix)
    return passed(name, f"driver {version}, {len(found.gpus)} GPUs")


def _ask_nvml() -> bytes | None:
    command = [sys.executable, "-m", "ncclwatch_agent.gpu.nvml"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        return child.communicate(timeout=NVML_S_MAX)[0]
    except subprocess.TimeoutExpired:
        child.kill()  # it may not end before the driver lets it; nobody waits for that
        return None


def open_files(limit: int | None = None) -> Check:
    """Look at the limit of open files: a rank with loader workers and a connection to each peer takes hundreds."""
    name = "open files"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = soft if limit is None else limit
    if soft == resource.RLIM_INFINITY or soft >= FILES_ENOUGH:
        return passed(name, "unlimited" if soft == resource.RLIM_INFINITY else f"{soft}")
    raised = f"ulimit -n {'65536' if hard == resource.RLIM_INFINITY else min(hard, 65536)}"
    return warned(
        name,
        f"{soft} at most for each process: with many ranks, groups and loader workers the next socket fails",
        f"run `{raised}` before the job (Slurm: PropagateResourceLimits; systemd: LimitNOFILE=65536)",
    )


def locked_memory(limit: int | None = None, active: bool | None = None) -> Check:
    """Look at the limit of locked memory, where InfiniBand registers buffers with the adapter."""
    name = "locked memory"
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        return passed(name, "unlimited")
    if not (resources.infiniband_is_active() if active is None else active):
        return passed(name, f"{soft // 1024} kB; no InfiniBand here needs more")
    return warned(
        name,
        f"{soft // 1024} kB, and an InfiniBand port is up: NCCL cannot register its buffers (ibv_reg_mr failed)",
        "ulimit -l unlimited before the job; docker: --ulimit memlock=-1; Slurm and systemd: LimitMEMLOCK=infinity",
    )
