"""Says twice a second, in one light thread, that this interpreter is alive, and where its threads are.

It needs the GIL to run, and that is the point: a pulse that has stopped in a process that lives
says that something holds the GIL. It also notes what is complete, sees to the agent, and looks
where threads are that have issued nothing since it last looked.

Without a pulse nobody notes what is complete: a ring that goes on without one would show a hang that is none. So one
that fails for good says in the ring that this rank is not recorded any more, warns once, and training goes on.
"""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from ncclwatch.contract import config
from ncclwatch.contract.machine import quiet_threads
from ncclwatch.contract.model.phases import Phase, phase_of_frame
from ncclwatch.contract.on_hang.hang_error import HangError
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.modules import write as write_module
from ncclwatch.rank import torch_versions, worker_server
from ncclwatch.rank.agents import launch
from ncclwatch.rank.device.progress import DeviceProgress
from ncclwatch.rank.notices.listener import NoticeListener
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.where import free_threads, own_stacks
from ncclwatch.rank.where.call_sites import describe_exception
from ncclwatch.rank.where.calls import call_name

AGENT_CHECK_S = 3.0
BEATS_FAILED_MAX = 20  # in a row: ten seconds
FRAMES_MAX = 8  # of the user's own, in a sample
_PR_SET_PTRACER = 0x59616D61


class Pulse:
    """The pulse thread of one rank."""

    def __init__(
        self,
        recorder: Recorder,
        directory: str,
        first: bool,
        witness: str,
        warn: Callable[..., None],
        listener: NoticeListener | None = None,
    ) -> None:
        self._recorder = recorder
        self._directory = directory
        self._witness = witness  # the socket at which this rank is to answer, "" for none
        self._stop = threading.Event()
        self._issued: dict[int, int] = {}  # operations seen at the previous pulse, by thread row
        self._tids: dict[int, int] = {}  # row -> native id of its thread
        self._stacks: dict[int, tuple[int, int]] = {}  # row -> hash of the stack, since when
        self._modules: dict[int, tuple[int, dict[str, object]]] = {}  # row -> since when, what was found then
        # The first local rank starts the agent at once; the others look after it later.
        self._agent_checked = float("-inf") if first else time.monotonic()
        self._warn = warn
        self._agent_starts = 0
        self._free_threads = 0
        self._devices = DeviceProgress(recorder, torch_versions.nccl_recorder_dump)
        self._starting: subprocess.Popen[bytes] | None = None
        self._agent_allowed = 0
        self._listener = listener
        self.lost = False  # it has failed for good
        self._thread = threading.Thread(target=self._run, name="ncclwatch-pulse", daemon=True)

    def start(self) -> None:
        """Begin."""
        quiet_threads.start(self._thread)

    def stop(self, wait_s: float = config.PULSE_S) -> bool:
        """End, without waiting for it longer than this; returns whether it has ended."""
        self._stop.set()
        if self._listener is not None:
            self._listener.close()
        if self._thread is not threading.current_thread() and self._thread.ident is not None:  # it was started
            self._thread.join(timeout=wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._live()
        except BaseException as error:  # SystemExit as well: a thread that ends by it ends without a word
            if not self._stop.is_set():
                self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Say that this rank is not recorded any more, to whoever reads its ring and to its user."""
        self.lost = True
        self._recorder.ring.set_word(Word.DETACHED, 1)
        self._warn(
            f"this rank is not recorded any more: its pulse failed ({type(error).__name__}: {error}). Training goes "
            "on; hangs of this rank are not judged until it is started again. This is a bug in ncclwatch.",
            "pulse",
        )

    def _live(self) -> None:
        failures = 0
        try:
            worker_server.start(self._witness)
        except Exception:  # whoever asks sees that nobody answers; without a second witness all goes on as before
            self._witness = ""
        while not self._stop.is_set():
            try:
                self._beat()
                failures = 0
            except Exception:  # the ring may be closed under us by detach(); nothing may reach training
                failures += 1
                if self._stop.is_set():
                    return
                if failures >= BEATS_FAILED_MAX:
                    raise
            self._stop.wait(config.PULSE_S)

    def _beat(self) -> None:
        recorder = self._recorder
        recorder.ring.set_word(Word.PULSE_NS, time.monotonic_ns())
        worker_server.look_after()
        recorder.drain_all()
        self._look_at_devices()
        if recorder.pending_exception is not None:
            found, recorder.pending_exception = recorder.pending_exception, None
            recorder.ring.set_sample(config.THREADS_MAX, time.monotonic_ns(), found)
        self._look_at_threads()
        self._publish()
        self._answer()
        self._look_at_notices()
        if self._starting is not None:
            trouble = launch.launch_trouble(self._starting, self._directory)
            if trouble:
                self._tell(trouble)
            self._starting = self._starting if trouble is None else None
        elif time.monotonic() - self._agent_checked >= AGENT_CHECK_S:
            self._agent_checked = time.monotonic()
            self._see_to_agent()

    def _publish(self) -> None:
        try:
            self._recorder.preflight.publish()
        except Exception:  # a full disk, or a torch that tells its version otherwise: this rank is not compared
            self._recorder.ring.count_dropped()

    def _answer(self) -> None:
        try:
            own_stacks.answer(self._recorder.ring.place, self._recorder.ring.file_name)
        except Exception:  # a full disk, or a question that cannot be taken away: the beat goes on
            self._recorder.ring.count_dropped()

    def _look_at_notices(self) -> None:
        """Read the agent's notices of hangs, if the owner of the job has asked for them."""
        if self._listener is not None:
            try:
                self._listener.listen(self._recorder.threads.get(threading.main_thread().ident or 0))
            except Exception:  # the directory was removed: no notices
                self._recorder.ring.count_dropped()

    def _look_at_devices(self) -> None:
        try:
            self._devices.look()
        except Exception:  # another layout of torch's: completion on devices is unknown from now on
            self._recorder.ring.count_dropped()
            self._devices.give_up()
            self._devices = DeviceProgress(self._recorder, lambda _: "{}")

    def _tell(self, trouble: str) -> None:
        self._agent_starts = launch.STARTS_MAX
        self._warn(f"no agent runs on this node: {trouble}. Nothing will be reported; training goes on.")

    def _look_at_threads(self) -> None:
        """Note where threads are that have issued nothing since the previous pulse."""
        frames: dict[int, FrameType] = {}
        errors: dict[int, object] = {}
        for ident, row in list(self._recorder.threads.items()):
            self._meet(row)
            issued = self._recorder.ring.thread_issued(row)
            if self._issued.get(row) == issued:
                frames = frames or sys._current_frames()
                errors = errors or dict(sys._current_exceptions())
                frame = frames.get(ident)
                if frame is not None:
                    self._sample((row, issued), ident, frame, errors.get(ident))
            self._issued[row] = issued
        self._count_free_threads(frames)
        frames.clear()

    def _count_free_threads(self, frames: dict[int, FrameType]) -> None:
        """Note how many threads without a row may act, while a thread with one stands still."""
        found = 0
        if frames and threading.active_count() > 1:
            found = free_threads.count(frames, self._recorder.threads, self._recorder.sites.users_frame)
        if found != self._free_threads:
            self._recorder.ring.set_word(Word.FREE_THREADS, found)
            self._free_threads = found

    def _meet(self, row: int) -> None:
        """Forget what was seen of a thread that has ended, whose row another one has got."""
        tid = self._recorder.ring.thread_tid(row)
        if self._tids.get(row, tid) != tid:
            for seen in (self._issued, self._stacks, self._modules):
                seen.pop(row, None)
        self._tids[row] = tid

    def _sample(self, seen: tuple[int, int], ident: int, frame: FrameType, error: object) -> None:
        """Note what a thread is in. `seen`: its row, and how many operations it had issued before and after a pulse."""
        row, issued = seen
        key, names, work = _stack_key(frame)
        known = self._stacks.get(row)
        since = known[1] if known is not None and known[0] == key else time.monotonic_ns()
        self._stacks[row] = (key, since)
        found: dict[str, object] = {"name": _thread_name(ident), "leaf": names, "issued": issued}
        if work is not None:
            found["work"] = work.value
        found["frames"] = [
            [
                os.path.abspath(code.co_filename),
                line,
                getattr(code, "co_qualname", code.co_name).replace(".<locals>", ""),
            ]
            for code, line in self._recorder.sites.users_frames(frame, FRAMES_MAX)
        ]
        if known is not None and known[0] == key:  # it stands still: what is read now costs nobody anything
            found |= self._modules_of(row, since, frame)
        users = self._recorder.sites.users_frame(frame)
        if users is not None:
            found["call"] = call_name(users.f_code, users.f_lasti)
        if isinstance(error, tuple):  # Python 3.10 and 3.11 give what sys.exc_info() would
            error = error[1]
        if isinstance(error, BaseException) and not isinstance(error, (StopIteration, HangError)):
            found |= describe_exception(error, self._recorder.sites)
        self._recorder.ring.set_sample(row, since, found)

    def _modules_of(self, row: int, since_ns: int, frame: FrameType) -> dict[str, object]:
        """Return in which module a thread stands still, and the modes of those that communicate; once for each wait."""
        before = self._modules.get(row)
        if before is None or before[0] != since_ns:
            modules = self._recorder.sites.modules
            found: dict[str, object] = {}
            try:
                inside = modules.at(frame)
                if inside is not None:
                    found["module"] = write_module(inside)
                found["modes"] = [write_module(each) for each in modules.modes()]
            except Exception:  # a model that another thread changes at this moment: it is not told
                self._recorder.ring.count_dropped()
            before = self._modules[row] = (since_ns, {name: each for name, each in found.items() if each})
        return before[1]

    def _see_to_agent(self) -> None:
        """Start an agent if none lives, and allow the one that lives to look at this process."""
        if self._agent_starts < launch.STARTS_MAX:
            try:
                self._starting = launch.ensure_agent(self._directory)
            except launch.LaunchError as error:
                self._tell(str(error))
            self._agent_starts += self._starting is not None
        pid = launch.agent_pid(self._directory)
        if pid and pid != self._agent_allowed:
            self._agent_allowed = pid
            _allow_tracing_by(pid)
            self._recorder.ring.set_word(Word.AGENT_PID, pid)


def _allow_tracing_by(pid: int) -> None:
    """Let one process read our stacks where Yama restricts that to parents (ptrace_scope 1)."""
    if os.path.exists("/proc/sys/kernel/yama/ptrace_scope"):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def _stack_key(frame: FrameType | None) -> tuple[int, str, Phase | None]:
    """Return a hash of a whole stack, the name of its innermost frame, and what a framework does in it."""
    leaf = ""
    work: Phase | None = None
    key = 0
    depth = 0
    while frame is not None and depth < config.STACK_DEPTH_MAX:
        code = frame.f_code
        if depth == 0:
            leaf = f"{code.co_name} {code.co_filename}:{frame.f_lineno}"
        work = work or phase_of_frame(code.co_filename, code.co_name)
        key = hash((key, code, frame.f_lasti))
        frame = frame.f_back
        depth += 1
    return key, leaf, work


def _thread_name(ident: int) -> str:
    found = next((t.name for t in threading.enumerate() if t.ident == ident), "")
    return "MainThread" if ident == threading.main_thread().ident else found
