"""A rank ended with an error of its own, or was killed. The others only noticed that it was gone."""

import signal
from dataclasses import replace

from ncclwatch.contract.model.preflight import BACKEND
from ncclwatch.contract.model.rank import Ending, Op, RankView
from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames.ends import tell
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.ends.causes import Went, failed_for_all
from ncclwatch_server.judge.theory.ends.kinds import is_clean, is_of_a_pipe
from ncclwatch_server.judge.theory.roots import GoneRoot, Root

ADVICE = (
    "Look at the last output of this rank, and at the exit code or signal that its launcher reports. SIGKILL (exit "
    "code -9) may be the OOM killer (dmesg); SIGABRT (-6) comes from native code, such as gloo when ranks pass sizes "
    "that do not match."
)
# Where more is known of how it ended.
ADVICE_EXCEPTION = "Fix the exception of this rank: its traceback is in this rank's own output."
ADVICE_ECHO = "The errors of the ranks that ended after it are consequences."
ADVICE_EVERYBODY = (
    "Fix the exception. As all ranks raise it, look at the program and its settings first, then at what one rank may "
    "have given to all, such as a gradient that is not finite. Each rank has the traceback in its own output."
)
ADVICE_HANDED_ON = (
    "Fix the exception that is quoted in that of the checkpoint: compare what this rank saves or loads, such as its "
    "keys and files, with the other ranks. Each rank has the traceback in its own output."
)
ADVICE_STORE = (
    "Find out why the process that holds the store ended (torchrun, rank 0, or a TCPStore of the program's own). Look "
    "at its output and the kernel log (dmesg); the exception of this rank names the store's address."
)
ADVICE_PIPE = (
    "Look at what this rank was connected to at that line: a data loader worker that was killed, or a service that "
    "ended. If a worker ran out of memory (dmesg), lower num_workers. The traceback is in the output of this rank."
)
ADVICE_KILLED = (
    "Find out who sent the signal. After SIGKILL, look in the kernel log for the OOM killer (dmesg) and in the "
    "scheduler's log for a memory limit."
)
ADVICE_FAULT = (
    "Look at the last output and the core dump of this rank: its native code made an invalid access. The kernel sends "
    "SIGSEGV and similar signals to the process that made the fault."
)
ADVICE_ABORT = (
    "Look at the last output of this rank: native code aborted the process after a failed check. gloo does so on a "
    "rank to which a peer sends more than it expects (op.preamble.length <= op.nbytes): compare the sizes and splits "
    "that the ranks pass to the last operation. The aborted rank may be the one with the right sizes."
)
ADVICE_ABORT_NCCL = (
    "Look for an NCCL error in the output of this rank: torch's watchdog aborts a process when NCCL reports one. With "
    "'message truncated', ranks passed different sizes or have different NCCL settings. With 'Connection closed by "
    "remote peer', another rank ended first."
)
ADVICE_SPLITS = (
    "It was in all_to_all, whose splits are not recorded: print input_split_sizes and output_split_sizes on all ranks. "
    "What one rank sends to another must be as much as that one expects from it."
)
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain ranks that are gone with an error, where no rule before knows it more closely."""
    if not isinstance(root, GoneRoot) or root.ends.went is Went.LEFT:
        return None
    ending = case.views[root.ranks[0]].ending or Ending(kind="vanished")
    if ending.exception and len(root.ranks) > 1 and len(root.ranks) == case.snapshot.world_size:
        return _of_all(case, root)
    echoes = any((end := case.views[rank].ending) is not None and not is_clean(end) for rank in root.victims)
    backend = case.snapshot.setup.of(root.ranks[0]).get(BACKEND)
    lost = root.ends.went is Went.LOST
    advice = ADVICE_STORE if lost else _advice(ending, echoes=echoes, by_nccl="nccl" in backend)
    if (
        not ending.exception
        and ending.signal in (None, signal.SIGABRT)
        and _is_in_all_to_all(case.views[root.ranks[0]])
    ):
        advice = f"{ADVICE_SPLITS} {advice}"
    return tell(case, root.ranks, advice=advice)


def _of_all(case: Case, root: GoneRoot) -> Explanation:
    """Explain that all ranks have raised the same: of themselves, or as a checkpoint has handed it on to them."""
    failed = failed_for_all(case, root.ranks)
    if not failed:
        return tell(case, root.ranks, advice=ADVICE_EVERYBODY)
    found = tell(case, failed, advice=ADVICE_HANDED_ON)
    others = tuple(rank for rank in root.ranks if rank not in failed)
    return replace(
        found,
        explanation=(
            f"What {ranks_words(failed)} raised in a step of the checkpoint was handed on to all ranks: "
            f"{ranks_words(others)} raised the same at the same line, and it names {ranks_words(failed)} only."
        ),
        victims=others,
    )


def _is_in_all_to_all(view: RankView) -> bool:
    last = view.history[-1] if view.history else None
    return last is not None and last.op is Op.ALL_TO_ALL and not last.completed


def _advice(ending: Ending, *, echoes: bool, by_nccl: bool) -> str:
    if is_of_a_pipe(ending.exception):
        return ADVICE_PIPE
    if ending.exception:
        return f"{ADVICE_EXCEPTION} {ADVICE_ECHO}" if echoes else ADVICE_EXCEPTION
    if ending.signal == signal.SIGABRT:
        return ADVICE_ABORT_NCCL if by_nccl else ADVICE_ABORT
    if ending.signal in _FAULTS:
        return ADVICE_FAULT
    return ADVICE_KILLED if ending.signal is not None else ADVICE


RULE = Rule(cause=Cause.RANK_CRASHED, advice=ADVICE, recognise=recognise)
