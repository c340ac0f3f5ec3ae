"""Asks py-spy, from outside and with a deadline, what each thread of a rank is doing right now.

py-spy reads the memory of a process without its help: also of one that is stopped, holds the
GIL, or sits in D state. It is refused where the kernel forbids to look into other processes;
that is told as an observation, with the command that would allow it.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

import msgspec

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import ProcessState, StackDump, StackFrame
from ncclwatch.contract.undecodable import UNDECODABLE
from ncclwatch_agent.deadline import within
from ncclwatch_agent.process.halted import halting
from ncclwatch_agent.process.procfs import state_of

DUMP_S_MAX = 5.0
NATIVE_S_MAX = 12.0  # the symbols of torch are hundreds of megabytes
DUMP_BYTES_MAX = 4 * 1024 * 1024
THREADS_MAX = 256
LET_GO_LOOKS = 10
NAME_CHARS_MAX = 200  # of a function; templates of C++ take thousands
_CAP_SYS_PTRACE = 1 << 19
_MISSING = f"no py-spy beside {sys.executable} nor on PATH; run: {sys.executable} -m pip install py-spy"


class _Frame(msgspec.Struct, frozen=True):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Thread(msgspec.Struct, frozen=True):
    thread_name: str | None = None
    os_thread_id: int | None = None
    frames: tuple[_Frame, ...] = ()


_decoder = msgspec.json.Decoder(tuple[_Thread, ...])


def find_py_spy() -> str:
    """Return the path of py-spy: the one beside this Python, or on PATH; "" if there is none that may be started.

    An agent of root that goes on as another user may have its Python in root's own home.
    """
    beside = Path(sys.executable).parent
    return shutil.which("py-spy", path=str(beside)) or shutil.which("py-spy") or ""


def parse_dump(rank: int, pid: int, data: bytes) -> StackDump:
    """Return the stacks out of py-spy's JSON."""
    try:
        threads = _decoder.decode(data)
    except UNDECODABLE as error:
        return StackDump(rank=rank, failure=f"py-spy gave no stacks: {error}")
    return StackDump(
        rank=rank,
        threads=tuple(
            (
                # Without the threading module, not even the main thread has a name.
                thread.thread_name or ("MainThread" if thread.os_thread_id == pid else f"thread {thread.os_thread_id}"),
                tuple(
                    StackFrame(function=frame.name[:NAME_CHARS_MAX], file=frame.filename, line=frame.line)
                    for frame in thread.frames[: config.STACK_DEPTH_MAX]
                ),
            )
            for thread in threads[:THREADS_MAX]
        ),
    )


def refusal(pid: int, said: str, *, ptrace_scope: str, capable: bool, contained: bool) -> str:
    """Return the sentence for a py-spy that failed: what was refused, and the command that would allow it."""
    reason = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "no reason given")
    lowered = said.lower()
    if "permission" not in lowered and "operation not permitted" not in lowered:
        return f"py-spy could not read pid {pid}: {reason[:300]}"
    if contained and not capable:
        advice = (
            "start the container with --cap-add SYS_PTRACE (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
        )
    elif ptrace_scope in ("1", "2") and not capable:
        advice = "run: sudo sysctl kernel.yama.ptrace_scope=0"
    elif ptrace_scope == "3":
        advice = "kernel.yama.ptrace_scope is 3, which only a reboot without it lifts"
    else:
        advice = "run the agent as the user of the job or as root: sudo ncclwatch-agent"
    return f"the kernel refused to let py-spy read pid {pid} (permission denied); to allow it, {advice}"


def explain_refusal(pid: int, said: str) -> str:
    """Return `refusal` for this machine as it is set up now."""
    scope = _read("/proc/sys/kernel/yama/ptrace_scope").strip()
    capabilities = 0
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            capabilities = int(line.split()[1], 16)
    contained = (
        Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ
    )
    return refusal(
        pid, said, ptrace_scope=scope, capable=bool(capabilities & _CAP_SYS_PTRACE), contained=contained
    )  # fmt: skip


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class StackDesk:
    """Dumps stacks, one process at a time or as many as it is told."""

    def __init__(
        self,
        py_spy: str | None = None,
        deadline_s: float = DUMP_S_MAX,
        native_s_max: float = NATIVE_S_MAX,
        at_once: int = 1,
    ) -> None:
        self._py_spy = find_py_spy() if py_spy is None else py_spy
        self._deadline_s = deadline_s
        self._native_s_max = native_s_max
        self._turns = asyncio.Semaphore(at_once)

    async def dump(self, rank: int, pid: int) -> StackDump:
        """Return the Python stacks of one process, or why there are none. Never stops the process."""
        return await self._dump(rank, pid, ("--nonblocking",), self._deadline_s)

    async def dump_native(self, rank: int, pid: int) -> StackDump:
        """Return the stacks with the frames of native code between those of Python; Python's alone where that fails.

        This stops the process for about a second, so it is for one that stands still. One that is stopped already, or
        that the kernel does not let go of, is left alone: it could not be let go of in time.
        """
        before = state_of(pid)
        if before not in (ProcessState.SLEEPING, ProcessState.RUNNING):
            return await self.dump(rank, pid)
        with halting(pid):
            try:
                found = await self._dump(rank, pid, ("--native",), self._native_s_max)
            finally:
                await _let_go(pid)
        return found if found.threads else await self.dump(rank, pid)

    async def _dump(self, rank: int, pid: int, how: tuple[str, ...], deadline_s: float) -> StackDump:
        if not self._py_spy:
            return StackDump(rank=rank, failure=_MISSING)
        async with self._turns:
            try:
                code, out, said = await self._run(pid, how, deadline_s)
            except asyncio.TimeoutError:
                return StackDump(rank=rank, failure=f"py-spy did not answer for pid {pid} within {deadline_s:.0f} s")
            except OSError as error:
                return StackDump(rank=rank, failure=f"cannot start {self._py_spy}: {error.strerror}")
        if len(out) > DUMP_BYTES_MAX:
            return StackDump(rank=rank, failure=f"the stacks of pid {pid} are larger than {DUMP_BYTES_MAX} bytes")
        return parse_dump(rank, pid, out) if code == 0 else StackDump(rank=rank, failure=explain_refusal(pid, said))

    async def _run(self, pid: int, how: tuple[str, ...], deadline_s: float) -> tuple[int, bytes, str]:
        process = await asyncio.create_subprocess_exec(
            self._py_spy, "dump", *how, "--json", "--pid", str(pid),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # root's terminal is none of its business, where root has become another user
        )  # fmt: skip
        out, said = process.stdout, process.stderr
        if out is None or said is None:
            raise OSError(0, "no pipes")  # cannot be: both were asked for
        try:
            return await within(deadline_s, _finish(process, out, said))
        except BaseException:
            _kill(process)
            # Only a reader that comes to the end lets asyncio see the end of the process.
            await asyncio.gather(_read_all(process, out), _read_all(process, said))
            await process.wait()
            raise


async def _let_go(pid: int) -> None:
    """Let a process run on that was running before: a tracer that is killed may leave its target stopped."""
    for _ in range(LET_GO_LOOKS):
        if state_of(pid) is not ProcessState.STOPPED:
            return
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.05)


async def _finish(
    process: asyncio.subprocess.Process, out: asyncio.StreamReader, said: asyncio.StreamReader
) -> tuple[int, bytes, str]:
    found = await asyncio.gather(_read_all(process, out), _read_all(process, said))
    return await process.wait(), found[0], found[1].decode(errors="replace")


async def _read_all(process: asyncio.subprocess.Process, stream: asyncio.StreamReader) -> bytes:
    """Read to the end; a process that prints more than DUMP_BYTES_MAX is killed for it."""
    parts, size = [], 0
    while part := await stream.read(65536):
        if size <= DUMP_BYTES_MAX:
            parts.append(part)
            size += len(part)
        if size > DUMP_BYTES_MAX:
            _kill(process)
    return b"".join(parts)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
