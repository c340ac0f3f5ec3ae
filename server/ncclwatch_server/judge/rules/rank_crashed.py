"""A rank ended with an error of its own, or was killed. The others only noticed that it was gone."""

from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames.ends import tell
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.endings import Went, is_of_a_pipe, is_victim
from ncclwatch_server.judge.theory.roots import GoneRoot, Root

ADVICE = (
    "Fix what ended this rank; the other ranks only noticed that it was gone. After a signal 9 without a "
    "trace, look in the kernel log for the OOM killer (dmesg)."
)
# Where more is known of how it ended.
ADVICE_EXCEPTION = (
    "Fix the exception of this rank: its traceback is in this rank's own output. The errors of the other ranks are "
    "only its echo."
)
ADVICE_STORE = (
    "Look why the process that holds the store ended (torchrun, rank 0, or a TCPStore of the program's own): its "
    "output and the kernel log (dmesg). The exception of this rank names the store's address."
)
ADVICE_PIPE = (
    "Look what this rank was connected to at that line: a worker process of its data loader that was killed (out of "
    "memory? see dmesg, and lower num_workers), or a service that went away. Its traceback is in its own output."
)
ADVICE_KILLED = (
    "Find out who sent the signal: after SIGKILL look in the kernel log for the OOM killer (dmesg) and in the "
    "scheduler's log for a memory limit; after SIGSEGV or SIGABRT at this rank's last output and its core dump."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain ranks that are gone with an error, where no rule before knows it more closely."""
    if not isinstance(root, GoneRoot) or root.ends.went is Went.LEFT:
        return None
    ending = case.views[root.ranks[0]].ending or Ending(kind="vanished")
    return tell(case, root.ranks, advice=_advice(ending))


def _advice(ending: Ending) -> str:
    if is_victim(ending) and not is_of_a_pipe(ending):
        return ADVICE_STORE
    if is_victim(ending):
        return ADVICE_PIPE
    if ending.exception:
        return ADVICE_EXCEPTION
    return ADVICE_KILLED if ending.signal is not None else ADVICE


RULE = Rule(cause=Cause.RANK_CRASHED, advice=ADVICE, recognise=recognise)
