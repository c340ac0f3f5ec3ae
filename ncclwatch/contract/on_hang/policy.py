"""Reads a policy: which action follows which cause, by how certain the verdict is."""

import difflib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine import homes
from ncclwatch.contract.model.verdict import Cause, Certainty
from ncclwatch.contract.on_hang.default_policy import DEFAULT_POLICY
from ncclwatch.contract.on_hang.ways import BY_POLICY, WAYS

STALLED_FOR_S = 120.0  # where a file does not say so
OTHER = "other"  # in a file: every cause that it does not name
FILE_BYTES_MAX = 64 * 1024
HOOK_TIMEOUT_S = 30.0  # where a file does not say so


class Action(str, Enum):
    """What is done about a hang."""

    REPORT = "report"
    CAPTURE = "capture"
    RAISE = "raise"  # `HangError` in the ranks; it is up to the script what follows
    ABORT = "abort"
    RESTART = "restart"
    RESTART_ELSEWHERE = "restart_elsewhere"

    @property
    def ends(self) -> bool:
        """Whether the job is ended."""
        return self not in (Action.REPORT, Action.CAPTURE, Action.RAISE)

    @property
    def restarts(self) -> bool:
        """Whether the job is to begin again."""
        return self in (Action.RESTART, Action.RESTART_ELSEWHERE)


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    restarts_max: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    restarts_unsaved_max: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    proven: dict[str, Action] = {}
    stalled: dict[str, Action] = {}
    stalled_for_s: dict[str, Annotated[float, msgspec.Meta(ge=0, le=86400)]] = {}
    hook: str | list[str] = []
    hook_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = HOOK_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which action follows which cause."""

    proven: Mapping[str, Action]  # by the name of the cause; `OTHER`: those that are not named
    stalled: Mapping[str, Action]
    stalled_for_s: Mapping[str, float]  # for so long a STALLED verdict has to stand before anything is done
    restarts_max: int
    restarts_unsaved_max: int = 0  # of them, those after a restart since which nothing was saved
    hook: tuple[str, ...] = ()  # an executable with its arguments, run before anything is done; (): none
    hook_timeout_s: float = HOOK_TIMEOUT_S

    def action(self, cause: str, certainty: str) -> Action:
        """Return what follows a critical verdict, whatever has been done before."""
        tables = {Certainty.PROVEN.value: self.proven, Certainty.STALLED.value: self.stalled}
        table = tables.get(certainty)
        if table is None:
            return Action.REPORT
        return table.get(cause, table.get(OTHER, Action.REPORT))

    def patience_s(self, cause: str, certainty: str) -> float:
        """Return for how long a verdict has to stand before anything is done."""
        if certainty == Certainty.PROVEN.value:
            return 0.0
        return self.stalled_for_s.get(cause, self.stalled_for_s.get(OTHER, STALLED_FOR_S))


def default_policy() -> Policy:
    """Return the policy that is in force where nobody has written one."""
    return parse(DEFAULT_POLICY, "the default policy")


def in_force(on_hang: str, file: Path | None = None, environ: Mapping[str, str] = os.environ) -> Policy | None:
    """Return the policy of whoever starts a job, None if hangs are only told of. Raises `ConfigError`.

    `on_hang`: one of `WAYS`, or "": what NCCLWATCH_ON_HANG says. `file`: of the policy, else that in
    NCCLWATCH_HANG_POLICY, else the default one counts.
    """
    wanted = on_hang or environ.get(config.ENV_ON_HANG, "").strip() or Action.REPORT.value
    if wanted not in WAYS:
        raise ConfigError(f"{config.ENV_ON_HANG} is {wanted!r}; it may be {', '.join(WAYS)}")
    said = stated(file, environ)
    if wanted == BY_POLICY:
        return said
    if wanted == Action.REPORT.value:
        return None
    both = {OTHER: Action(wanted)}
    return replace(said, proven=both, stalled=both, stalled_for_s={OTHER: 0.0})


def stated(file: Path | None = None, environ: Mapping[str, str] = os.environ) -> Policy:
    """Return the policy that a file states, or the default one, see `in_force`. Raises `ConfigError`."""
    where, text, writable = _stated(file, environ)
    found = parse(text, where)
    if found.hook and writable:
        raise ConfigError(f"{where} names a hook, and may be written by every user: chmod o-w {where}")
    return found


def text_in_force(file: Path | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the text of a policy that can be used, see `in_force`. Raises `ConfigError`."""
    where, text, _ = _stated(file, environ)
    parse(text, where)
    return text


def _stated(file: Path | None, environ: Mapping[str, str]) -> tuple[str, str, bool]:
    """Return what a policy is called, its text, and whether every user may write it."""
    named = environ.get(config.ENV_HANG_POLICY, "").strip()
    path = file if file is not None else homes.expanded(named) if named else None
    if path is None:
        return "the default policy", DEFAULT_POLICY, False
    try:
        # Whoever reads it watches other jobs, too: the end of a pipe, or of a device, may never come.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError(f"{path} is not a file, and a policy for hangs has to be one")
            data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{path} is longer than {FILE_BYTES_MAX} bytes, which no policy for hangs may be")
        return str(path), data.decode("utf-8"), bool(mode & stat.S_IWOTH)
    except OSError as error:
        raise ConfigError(f"cannot read the policy for hangs in {path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a policy for hangs: it is no text in UTF-8") from error


def parse(text: str, where: str) -> Policy:
    """Return the policy that a TOML text states. `where` names it in an error. Raises `ConfigError`."""
    try:
        found = msgspec.toml.decode(text, type=_File)
    except ImportError as error:  # tomllib came with Python 3.11
        raise ConfigError(f"to read {where} this Python needs the package tomli: pip install tomli") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where} is not a policy for hangs: {error}; see ncclwatch config policy") from error
    if Action.RAISE in (*found.proven.values(), *found.stalled.values()):
        # Ranks have to prepare for it when they attach, and do not read this file.
        raise ConfigError(f"{where} says raise, which is for all causes or none: set {config.ENV_ON_HANG}=raise")
    known = [cause.value for cause in Cause]
    for table in (found.proven, found.stalled, found.stalled_for_s):
        for cause in table:
            if cause not in (*known, OTHER):
                near = difflib.get_close_matches(cause, known, n=1)
                meant = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"{where} names {cause}, which is no cause{meant} (see ncclwatch config policy)")
    return Policy(
        proven=found.proven,
        stalled=found.stalled,
        restarts_max=found.restarts_max,
        restarts_unsaved_max=found.restarts_unsaved_max,
        stalled_for_s=found.stalled_for_s,
        hook=_hook(found.hook, where),
        hook_timeout_s=found.hook_timeout_s,
    )


def _hook(said: str | list[str], where: str) -> tuple[str, ...]:
    if not said:
        return ()
    command = (said,) if isinstance(said, str) else tuple(said)
    if not command[0].startswith("/"):
        raise ConfigError(
            f'{where}: hook is "{command[0]}"; it has to be an absolute path, such as "/site/bin/on-hang"'
        )
    if any("\0" in word for word in command):
        raise ConfigError(f"{where}: hook has a zero byte in it")
    return command
