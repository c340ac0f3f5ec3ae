"""Says how a rank ended: puts together what it said itself and what the kernel says."""

import os
import signal
from dataclasses import dataclass, replace

from ncclwatch.contract.model.rank import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """What the node saw of the end of a process."""

    gone: bool  # no process runs any more; a zombie counts
    status: int | None = None  # as waitpid() gives it; None: nobody saw it


def merge(note: Ending | None, death: Death) -> Ending | None:
    """Return how the rank ended, None while it runs and has said nothing.

    The kernel's word goes before the rank's: a rank that announced exit code 0 and was then
    killed by a signal was killed.
    """
    if not death.gone or death.status is None:
        return note or (Ending(kind="vanished") if death.gone else None)
    code = os.waitstatus_to_exitcode(death.status)
    said = note or Ending(kind="exited")
    if code < 0:
        if said.kind == "exited":  # it had handled what it raised: that is not how it ended
            said = replace(said, exception="", site=None)
        return replace(said, kind="signalled", signal=-code, exit_code=None)
    if not code:  # whatever it had caught, it ended well after all
        return Ending(kind="exited", exit_code=0, age_s=said.age_s)
    return replace(said, kind="crashed", exit_code=code, signal=None)


def describe(ending: Ending) -> str:
    """Return an ending as people say it: "killed by SIGKILL", "crashed with exit code 1: ValueError: ..."."""
    if ending.kind == "signalled":
        try:
            said = f"killed by {signal.Signals(ending.signal or 0).name}"
        except ValueError:
            said = f"killed by signal {ending.signal}"
    elif ending.kind == "vanished":
        said = "vanished; nobody saw how"
    else:
        code = "" if ending.exit_code is None else f" with exit code {ending.exit_code}"
        said = ending.kind + code
    return f"{said}: {ending.exception}" if ending.exception else said


def is_abnormal(ending: Ending) -> bool:
    """Whether this end deserves the pictures of the other ranks at once."""
    return ending.kind != "exited"
