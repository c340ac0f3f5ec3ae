"""Reads the agent's notices of hangs, and raises or notes them as the owner of the job has asked."""

import time
from collections.abc import Callable, Mapping

from ncclwatch.contract import config
from ncclwatch.contract.on_hang.ways import RAISE, WAYS
from ncclwatch.contract.ring import layout
from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.notices.notice_file import NoticeFile
from ncclwatch.rank.notices.noting import Noting
from ncclwatch.rank.notices.raising import Raiser, unused_signal
from ncclwatch.rank.ring.ringfile import RingFile

_Warn = Callable[[str, str], None]
_KIND = 6  # field of `layout.WAIT`


class NoticeListener:
    """Belongs to the pulse thread, which calls `listen` with each pulse."""

    def __init__(self, ring: RingFile, raiser: Raiser | None, noting: Noting | None) -> None:
        self._ring = ring
        self._file = NoticeFile(ring.place, ring.file_name)
        self._raiser = raiser
        self._noting = noting

    def listen(self, main: int | None) -> None:
        """Read the notice. `main`: the row of the main thread in the ring."""
        notice = self._file.read(time.monotonic())
        step = self._ring.word(Word.STEPS)
        if self._noting is not None:
            self._noting.update(notice, step)
        if self._raiser is not None:
            self._raiser.consider(notice, blocked=main is not None and waits_for_peers(self._ring, main), step=step)

    def close(self) -> None:
        """Raise nothing from now on, and wait a moment for notes under way."""
        if self._raiser is not None:
            self._raiser.close()
        if self._noting is not None:
            self._noting.close()


def waits_for_peers(ring: RingFile, thread: int) -> bool:
    """Whether the thread in a row is inside an operation that only other ranks can end."""
    at = layout.THREADS_AT + thread * layout.THREAD_BYTES + layout.WAIT_AT
    kind = layout.WAIT.unpack_from(ring.memory, at)[_KIND]
    return bool(kind) and layout.WAITS[kind - 1].needs_peers


def listener(ring: RingFile, wishes: dict[str, str], warn: _Warn) -> NoticeListener | None:
    """Return the listener for what `in_force` returned, None if this rank needs no notices."""
    raiser = _raiser(warn) if wishes["on_hang"] == RAISE else None
    noting = Noting(warn) if wishes["notes"] == "1" else None
    return NoticeListener(ring, raiser, noting) if raiser is not None or noting is not None else None


def wanted(on_hang: str, notes: bool, warn: _Warn) -> dict[str, str]:
    """Return the arguments of `attach` as the ring stores them; "" for an unknown `on_hang`, with a warning."""
    if on_hang and on_hang not in WAYS:
        import difflib  # in no rank that attaches as it should

        near = difflib.get_close_matches(str(on_hang), WAYS, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        warn(f"attach(on_hang={on_hang!r}): it may be {', '.join(WAYS)}.{meant} Hangs are only reported.", "on_hang")
        on_hang = ""
    return {"on_hang": on_hang, "notes": "1" if notes else ""}


def in_force(asked: dict[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in force: the environment of the job, or else the arguments of `attach`."""
    said = {"on_hang": environ.get(config.ENV_ON_HANG, ""), "notes": environ.get(config.ENV_NOTES, "")}
    return {name: text.strip() or asked.get(name, "") for name, text in said.items()}


def _raiser(warn: _Warn) -> Raiser | None:
    why = "this process uses all real-time signals"
    number = unused_signal()
    if number:
        try:
            return Raiser(number)
        except ValueError:
            why = "attach() was not called in the main thread, and only there can a signal handler be set"
    warn(
        f"HangError cannot be raised in this rank: {why}. Hangs are reported; call ncclwatch.attach() in the main "
        f"thread, or set {config.ENV_ON_HANG} to another value.",
        "on_hang",
    )
    return None
