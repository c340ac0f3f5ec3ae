"""Lists the GPUs of this node and says which is a rank's. Asked when a rank with a GPU is there, not before.

NVML runs in a child that is killed when it takes too long, and left alone if even that does not end it. That it
says nothing, and why, is an observation.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ncclwatch.contract import config, foreign_json
from ncclwatch.contract.model.devices import DeviceView, GpuSlow
from ncclwatch_agent.deadline import within
from ncclwatch_agent.log import log

ASK_S_MAX = 5.0  # NVML on a node with 16 GPUs takes well under a second, and two when the driver is loaded for it
AGAIN_S = 60.0
KILLED_S_MAX = 1.0  # a process in an uninterruptible call ends when that call does, or never
ANSWER_BYTES_MAX = 256 * 1024
NOTHING = GpuSlow(0)
_ALL_SLOW = sum(GpuSlow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of this node."""

    uuid: str = ""
    name: str = ""
    trouble: str = ""  # in NVML's words
    slow: GpuSlow = NOTHING
    pci: str = ""  # "00000000:3B:00.0", as the kernel log names it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """The GPUs of this node in the order of NVML, or why they are not known."""

    gpus: tuple[Gpu, ...] = ()
    failure: str = ""


async def ask(deadline_s: float = ASK_S_MAX) -> NodeGpus:
    """Ask NVML in a process of its own. Never raises for what NVML does."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ncclwatch_agent.gpu.nvml",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # root's terminal is none of its business, where root has become another user
        )  # fmt: skip
    except OSError as error:
        return NodeGpus(failure=f"NVML cannot be asked: {error.strerror}")
    try:
        out, said = await within(deadline_s, process.communicate())
    except asyncio.TimeoutError:
        await _end(process)
        return NodeGpus(failure=f"NVML did not answer within {deadline_s:g} s: a GPU or the driver hangs (see dmesg)")
    except BaseException:
        await _end(process)
        raise
    if process.returncode != 0:
        last = said.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        return NodeGpus(failure=f"NVML cannot be asked: {last or f'exit code {process.returncode}'}")
    return parse(out)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a child. One that even so does not end is left behind: nobody waits for it."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(asyncio.TimeoutError):
        await within(KILLED_S_MAX, process.wait())


def parse(answer: bytes) -> NodeGpus:
    """Return what the child printed."""
    found = foreign_json.read(answer) if len(answer) <= ANSWER_BYTES_MAX else None
    if not isinstance(found, dict):
        return NodeGpus(failure="NVML's answer cannot be read")
    listed = found.get("gpus")
    return NodeGpus(
        gpus=tuple(
            Gpu(
                uuid=_text(each.get("uuid")),
                name=_text(each.get("name")),
                trouble=_text(each.get("trouble")),
                slow=GpuSlow(_number(each.get("slow")) & _ALL_SLOW),
                pci=_text(each.get("pci")),
            )
            for each in (listed if isinstance(listed, list) else [])
            if isinstance(each, dict)
        ),
        failure=_text(found.get("failure")),
    )


def _text(value: object) -> str:
    return value[: config.TEXT_CHARS_MAX] if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def slow_of(device: DeviceView, node: NodeGpus) -> GpuSlow:
    """Return what slows a rank's device down, nothing where it is not known which GPU it is."""
    return next((gpu.slow for gpu in node.gpus if device.uuid and gpu.uuid == device.uuid), NOTHING)


def with_node(device: DeviceView, node: NodeGpus) -> DeviceView:
    """Return a rank's device with what its node knows of it: the UUID where the rank could not tell, and its health."""
    uuid = device.uuid or _visible_uuid(device, node)
    trouble = next((gpu.trouble for gpu in node.gpus if uuid and gpu.uuid == uuid), "")
    return replace(device, uuid=uuid, trouble=trouble or node.failure)


def _visible_uuid(device: DeviceView, node: NodeGpus) -> str:
    """Return the UUID of the device with a rank's own number, "" where numbers alone do not tell.

    CUDA numbers the fastest GPU first, NVML by PCI address: they agree for sure only where all GPUs are alike.
    """
    if device.index < 0:
        return ""
    entries = None if device.visible is None else [entry.strip() for entry in device.visible.split(",")]
    if entries is None:
        entry = str(device.index)
    elif device.index < len(entries):
        entry = entries[device.index]
    else:
        return ""
    if entry.startswith("MIG-"):
        return entry
    if entry.startswith("GPU-"):
        matching = [gpu.uuid for gpu in node.gpus if gpu.uuid.startswith(entry)]
        return matching[0] if len(matching) == 1 else ""
    if not entry.isdigit() or len({gpu.name for gpu in node.gpus}) != 1 or int(entry) >= len(node.gpus):
        return ""
    return node.gpus[int(entry)].uuid


class GpuDesk:
    """Knows the GPUs of this node once somebody needs to know."""

    def __init__(self) -> None:
        self.seen = NodeGpus()
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._errors_of: Callable[[str], tuple[int, ...]] = lambda _: ()

    def hear(self, errors_of: Callable[[str], tuple[int, ...]]) -> None:
        """Mark the GPUs of which the kernel has told errors."""
        self._errors_of = errors_of
        self.seen = self._marked(self.seen)

    def _marked(self, node: NodeGpus) -> NodeGpus:
        gpus = tuple(
            replace(gpu, slow=gpu.slow | GpuSlow.XID) if gpu.pci and self._errors_of(gpu.pci) else gpu
            for gpu in node.gpus
        )
        return node if gpus == node.gpus else replace(node, gpus=gpus)

    def look_for(self, devices: Iterable[DeviceView | None]) -> None:
        """Ask anew, if a rank has a GPU and the last answer is old. Does not wait."""
        now = time.monotonic()
        if now - self._asked_at < AGAIN_S or (self._asking is not None and not self._asking.done()):
            return
        if any(device is not None and device.by_nccl and device.index >= 0 for device in devices):
            self._asked_at = now
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        before, self.seen = self.seen, self._marked(await ask())
        if self.seen.failure and self.seen.failure != before.failure:
            log.warning("the GPUs of this node are not known: %s", self.seen.failure)
        for gpu in self.seen.gpus:
            if gpu.trouble and gpu not in before.gpus:
                log.warning("NVML says of %s: %s", gpu.uuid or "a GPU", gpu.trouble)

    async def close(self) -> None:
        """Give up what is not done."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
