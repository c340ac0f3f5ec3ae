"""Says what the owner of the job has asked for, and prepares this rank for it."""

import difflib
from collections.abc import Callable

from ncclwatch.contract import config
from ncclwatch.contract.on_hang.ways import RAISE, WAYS
from ncclwatch.rank.told.raising import Raiser, unused_signal

_Warn = Callable[[str, str], None]


def wanted(on_hang: str, warn: _Warn) -> str:
    """Return what `attach(on_hang=...)` says, "" for nothing that is known."""
    if not on_hang or on_hang in WAYS:
        return on_hang
    near = difflib.get_close_matches(str(on_hang), WAYS, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    warn(f"attach(on_hang={on_hang!r}): it may be {', '.join(WAYS)}.{meant} Hangs are only reported.", "on_hang")
    return ""


def raiser(on_hang: str, warn: _Warn) -> Raiser | None:
    """Prepare to raise `HangError` in the main thread, if that is asked for."""
    if on_hang != RAISE:
        return None
    why = "no signal of real time is unused in this process"
    number = unused_signal()
    if number:
        try:
            return Raiser(number)
        except ValueError:
            why = "this rank attached in another thread than the main one, where no signal handler can be set"
    warn(
        f"HangError cannot be raised in this rank: {why}. Hangs are reported; call ncclwatch.attach() in the main "
        f"thread, or set {config.ENV_ON_HANG} to another value.",
        "on_hang",
    )
    return None
