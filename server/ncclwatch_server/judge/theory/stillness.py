"""Finds in what way a rank stands still that others wait for, and for how long it has.

Stillness is told from outside (CPU time, I/O, process state) and from inside (the Python stack, the
pulse that needs the GIL). One sign is not enough, and any sign of work is a veto.
"""

import re
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.rank import FOR_CHILDREN, ProcessState, RankView, ThreadView, TimedWait, WaitKind
from ncclwatch_server.judge.theory.case import Case, main_thread
from ncclwatch_server.judge.theory.histories.batches import ran_out
from ncclwatch_server.judge.theory.histories.exceptions import is_alone_with
from ncclwatch_server.judge.theory.histories.free_threads import IDLE_IN_CALL_S_MIN, may_come_back
from ncclwatch_server.judge.theory.histories.lines.call_sites import note_at
from ncclwatch_server.judge.theory.phases import phase_in_dump
from ncclwatch_server.judge.theory.places import place_of
from ncclwatch_server.judge.theory.pulse import is_lost
from ncclwatch_server.judge.theory.waits.device_order import may_wait_on_device
from ncclwatch_server.judge.theory.waits.rank_standing import FROZEN_STATES

STILL_S = 6.0  # without CPU, I/O or a change of the stack, before a rank counts as stalled
STILL_IN_IO_S = 7.0  # the same where waiting for a disk or a network is the rank's very work
STILL_ASLEEP_S = 9.0  # in a sleep of its own choice: a pause between two tries
STILL_ASLEEP_UNTIL_UNKNOWN_S = 30.0  # the same where nobody knows when it ends
TRIES = 4.0  # a wait that ends by itself has come back to no effect often when so many of its length are over
STILL_IN_FLUSH_S = 60.0  # until storage has taken what was written: the kernel works, and nothing of it is seen here
_STILL_IN_PHASE_S = {Phase.CHECKPOINT: 12.0, Phase.COMPILE: 20.0, Phase.FIRST_USE: 9.0}
STILL_FOR_ANSWER_S = 30.0  # in a read from another process: a service may take its time, and its work is not seen here
STOPPED_S = 2.0  # in state T
GIL_STILL_S = 5.0  # without a pulse, and without CPU
LEARNED_FACTOR = 2.0  # a job that has recovered from a wait gets this much of it as patience
LEARNED_S_MAX = 60.0  # where that was only now and then
SIGNS_MIN = 2  # of stillness, each seen in another way
_ANSWERS = frozenset("recvfrom recvmsg accept poll ppoll select pselect6 epoll_wait epoll_pwait connect".split())
# Where nobody may read the system call: channels in which a process waits for another one.
_CHANNELS = frozenset("wait_woken do_sys_poll do_poll ep_poll do_select sk_wait_data inet_csk_accept".split())
_POLLS = frozenset("poll ppoll select pselect6 epoll_wait epoll_pwait".split())
_SOCKETS = ("wait_woken", "sk_wait", "unix_stream", "tcp_")  # where a read() from a socket sits
_ASKS_FOR_FILES = re.compile(r"^while .*\b(exists|is_file|isfile|is_dir|isdir|stat|glob|listdir|iterdir)\(")
_FLUSHES = frozenset("fsync fdatasync syncfs sync_file_range msync".split())
_SLEEPS = frozenset(("clock_nanosleep", "nanosleep", "pause"))


class Trouble(Enum):
    """What a rank that stands still is in. One of these holds."""

    STOPPED = "stopped"  # by a signal or a debugger
    EXCEPTION = "exception"  # it handles one, or has gone its own way after one
    MEETING = "meeting"  # others wait to be all together
    DATA = "data"
    SAVE = "save"
    FILES = "files"  # it asks again and again whether a file is there
    LOCK_FILE = "lock file"  # it tries again and again to make a file that is there
    BATCHES = "batches"  # it has drawn fewer than the others, and come to their end
    ELSEWHERE = "elsewhere"


_OWN = frozenset((Trouble.STOPPED, Trouble.DATA, Trouble.SAVE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of the work that a rank is waited for with."""

    phase: Phase = Phase.STEP
    longest_still_s: float = 0.0  # that this job has stood still in such work before, and gone on by itself
    often_still_s: float = 0.0  # that it has at least, several times
    bound_s: float = 0.0  # that this job lets such work take; 0: unknown
    left_s: float = float("inf")  # until the others give up waiting for it, and the job ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Stillness:
    """In what way a rank outside all operations stands still."""

    trouble: Trouble
    patience_s: float
    still_s: float
    pulse_lost: bool = False  # native code holds the GIL, or the kernel does not answer

    @property
    def is_stalled(self) -> bool:
        """Whether it has stood still for longer than such work takes."""
        return self.still_s >= self.patience_s


def works(view: RankView) -> bool:
    """Say whether a rank shows a sign of work that is not that of a host which waits for its device."""
    thread = main_thread(view)
    return min(signs_of(view), default=1.0) == 0 and not (thread is not None and may_wait_on_device(view, thread))


def may_wait_for_another(view: RankView, still: Stillness) -> bool:
    """Say whether a rank that stands still may wait, by means that nobody records, for one that is at work.

    One rank of a node downloads what the others of the node look for, and all meet in a barrier afterwards.
    """
    if still.trouble in _OWN or is_lost(view) or view.process.state is ProcessState.DISK_WAIT:
        return False
    file, thread = view.process.lock_file, main_thread(view)
    if (file is not None and file.ended) or view.process.lock_holder:
        return False  # it waits for that process
    tries_again = view.process.timed is not None or (thread is not None and thread.calling == "sleep")
    return still.trouble is not Trouble.EXCEPTION or tries_again


def stillness(case: Case, view: RankView, known: Known = Known()) -> Stillness | None:
    """Return in what way a rank stands still, or None if it works or nobody can tell."""
    process, thread = view.process, main_thread(view)
    if process.state in FROZEN_STATES:
        return Stillness(trouble=Trouble.STOPPED, patience_s=STOPPED_S, still_s=still_s_of(view))
    kind = thread.wait.kind if thread is not None and thread.wait is not None else None
    still_s = still_s_of(view)
    if still_s <= 0:
        return None
    if is_lost(view):
        saves = kind is WaitKind.SAVE or phase_in_dump(case.snapshot.stacks.get(view.rank)) is Phase.CHECKPOINT
        return Stillness(
            trouble=Trouble.SAVE if saves else _trouble_by_place(kind),
            patience_s=_patience_until_end_s(
                view, kind, STILL_IN_FLUSH_S if _flushes(view, thread, kind, known.phase) else GIL_STILL_S, known
            ),
            still_s=still_s,
            pulse_lost=True,
        )
    trouble = _trouble_of(case, view, thread, kind)
    patience = max(
        _patience_for_holder_s(view, known) if trouble is Trouble.LOCK_FILE else 0.0,
        STILL_FOR_ANSWER_S if view.process.lock_holder else 0.0,  # of a process that nobody watches
        _patience_until_end_s(view, kind, _patience_s(view, thread, kind, known.phase), known),
        min(LEARNED_FACTOR * known.longest_still_s, LEARNED_S_MAX),
        min(LEARNED_FACTOR * known.often_still_s, known.bound_s),
        _patience_for_threads_s(view),
    )
    return Stillness(trouble=trouble, patience_s=patience, still_s=still_s)


def still_s_of(view: RankView) -> float:
    """Return for how long a rank has stood still by enough signs, in seconds; 0 if it works or nobody can tell."""
    thread = main_thread(view)
    if view.process.state in FROZEN_STATES:  # it may have waited for long before, without CPU: the pulse ends at once
        return min(view.process.cpu_still_s, view.pulse_age_s) if view.attached else view.process.cpu_still_s
    if (thread is None and view.attached) or (thread is not None and may_wait_on_device(view, thread)):
        return 0.0
    signs = signs_of(view)
    return min(signs) if len(signs) >= SIGNS_MIN else 0.0


def signs_of(view: RankView) -> tuple[float, ...]:
    """Return for how long each thing that is known of a rank has shown no work, in seconds; 0: it works.

    CPU time and bytes are seen from outside, the stack from inside; where the pulse has stopped, nobody inside looks
    any more, and that is a sign itself.
    """
    process, thread = view.process, main_thread(view)
    found = [process.cpu_still_s]
    if not process.io_unknown:
        found.append(process.io_still_s)
    if is_lost(view):
        found.append(view.pulse_age_s)
    elif view.attached and thread is not None and thread.leaf:
        found.append(thread.same_s)
    return tuple(found)


def timed_wait(view: RankView, kind: WaitKind | None) -> TimedWait | None:
    """Return the wait in which a rank stands still where that ends by itself, None if it is in no such wait.

    Where torch waits, it asks again whenever its own time is over, and what ends the wait is something else: only a
    sleep of the user's code counts there.
    """
    timed, thread = view.process.timed, main_thread(view)
    if timed is None or kind not in (None, WaitKind.DATA, WaitKind.SAVE):
        return None
    if timed.child:
        place = thread.in_kernel if thread is not None else view.process.in_kernel
        call = place.partition(" ")[0]
        waits = call in FOR_CHILDREN or (call == "futex" and timed.awaited)  # itself, or for a thread that does
        return timed if kind is WaitKind.DATA or waits else None
    return timed if timed.asleep or kind is None else None


def _patience_until_end_s(view: RankView, kind: WaitKind | None, patience_s: float, known: Known) -> float:
    """Return for how long a rank may stand still that comes back by itself, if it does.

    Waits of growing length are a back-off, and together no longer than a few times the last of them. One that ends
    when the job has given up, or later than this job lets such work take, is as good as one without an end.
    """
    timed = timed_wait(view, kind)
    if timed is None or timed.whole_s > known.bound_s or timed.left_s - view.news_age_s > known.left_s:
        return patience_s
    return max(patience_s, min(TRIES * timed.whole_s, known.bound_s))


def _patience_for_holder_s(view: RankView, known: Known) -> float:
    """Return for how long a rank may wait for the one who made a lock file: while that process lives, it may work."""
    file = view.process.lock_file
    if file is None or file.ended:
        return 0.0
    return known.bound_s if file.writer else STILL_FOR_ANSWER_S


def _patience_for_threads_s(view: RankView) -> float:
    """Return for how long a rank may stand still while another thread of it, which meets other ranks, may come back."""
    others = (thread for thread in view.threads if not thread.main and thread.wait is None)
    return IDLE_IN_CALL_S_MIN if any(map(may_come_back, others)) else 0.0


def _patience_s(view: RankView, thread: ThreadView | None, kind: WaitKind | None, phase: Phase) -> float:
    if _flushes(view, thread, kind, phase):
        return STILL_IN_FLUSH_S
    in_kernel = thread.in_kernel if thread is not None else ""
    call = in_kernel.partition(" ")[0]
    asleep = kind is None and thread is not None and (call in _SLEEPS or thread.calling == "sleep")
    if asleep:
        patience_s = STILL_ASLEEP_S if view.process.timed is not None else STILL_ASLEEP_UNTIL_UNKNOWN_S
    else:
        patience_s = _patience_in_call_s(kind, call, in_kernel)
        if kind is None and view.process.awaits_answer:
            patience_s = max(patience_s, STILL_FOR_ANSWER_S)
    return max(_STILL_IN_PHASE_S.get(phase, 0.0), patience_s)


def _flushes(view: RankView, thread: ThreadView | None, kind: WaitKind | None, phase: Phase) -> bool:
    """Say whether a rank waits until storage has taken what it wrote."""
    saving = phase is Phase.CHECKPOINT or kind is WaitKind.SAVE
    call = thread.in_kernel.partition(" ")[0] if thread is not None else ""
    return call in _FLUSHES or (saving and view.process.state is ProcessState.DISK_WAIT)


def _patience_in_call_s(kind: WaitKind | None, call: str, in_kernel: str) -> float:
    asks = call in _ANSWERS or (call in ("read", "readv") and any(word in in_kernel for word in _SOCKETS))
    asks = asks or in_kernel in _CHANNELS
    if kind in (WaitKind.DATA, WaitKind.SAVE):
        # A loader polls its own processes, whose work is seen.
        return STILL_FOR_ANSWER_S if asks and call not in _POLLS else STILL_IN_IO_S
    if kind is not None:  # a wait that torch makes, on the rendezvous store
        return STILL_S
    return STILL_FOR_ANSWER_S if asks else STILL_S


def _trouble_by_place(kind: WaitKind | None) -> Trouble:
    if kind is WaitKind.DATA:
        return Trouble.DATA
    return Trouble.SAVE if kind is WaitKind.SAVE else Trouble.ELSEWHERE


def _trouble_of(case: Case, view: RankView, thread: ThreadView | None, kind: WaitKind | None) -> Trouble:
    if _polls_for_lock_file(view, thread):
        return Trouble.LOCK_FILE
    exception = (thread.exception if thread is not None else "") or _went_on_after_exception(view)
    if exception and is_alone_with(case.views, view, exception):
        return Trouble.EXCEPTION
    if case.in_rendezvous:
        return Trouble.MEETING
    if kind in (WaitKind.DATA, WaitKind.SAVE):
        return _trouble_by_place(kind)
    if thread is not None and thread.work is Phase.CHECKPOINT:
        return Trouble.SAVE
    note = note_at(view, place_of(case, view))
    if note is not None and _ASKS_FOR_FILES.search(note.loop):
        return Trouble.FILES
    return Trouble.ELSEWHERE if ran_out(view, case.furthest) is None else Trouble.BATCHES


def _polls_for_lock_file(view: RankView, thread: ThreadView | None) -> bool:
    """Say whether a rank sleeps between two tries to make a file: its own exception is how it learns of the file."""
    timed = view.process.timed
    sleeps = timed is not None and timed.asleep and not timed.child
    asleep = sleeps or (thread is not None and thread.calling == "sleep")
    return view.process.lock_file is not None and asleep


def _went_on_after_exception(view: RankView) -> str:
    """Return the newest exception if it came after this rank's newest operation, else ""."""
    newest_s = view.history[-1].age_s if view.history else 0.0
    return view.last_exception if view.last_exception_s <= newest_s else ""
