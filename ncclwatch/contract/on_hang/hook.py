"""Defines what a site's own action on a hang, its hook, reads from standard input, and when it can be run.

What it reads comes from programs and from a server: text is cut, and put on one line, so that a script may log it.
"""

import os
import stat
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ncclwatch.contract import config
from ncclwatch.contract.model.verdict import Culprit, Severity
from ncclwatch.contract.words.printable import json_bytes, one_line

SCHEMA = 1
PER_ATTEMPT_MAX = 10  # runs of one attempt of a job
HOURLY_MAX = 20  # runs by one agent, or by one `ncclwatch run`
HOUR_S = 3600.0
CULPRITS_MAX = 32  # named
TEXT_CHARS_MAX = 1000  # of a sentence, and of an advice
NAME_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class HookIncident:
    """The hang. Each field is that of the same name in a report (`ncclwatch_server.incidents.report`)."""

    id: str
    job: str
    cause: str
    certainty: str
    severity: str = Severity.CRITICAL.value
    summary: str
    advice: str
    culprits: tuple[Culprit, ...]  # at most the first 32
    one_of: bool  # the evidence does not decide between the culprits
    opened_at: str  # ISO 8601, UTC
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """What a hook reads. A field is added, never renamed or given another meaning, while `schema` stays 1."""

    schema: int = SCHEMA
    action: str  # what is done about the hang: a name of the policy, such as "restart_elsewhere"
    reason: str
    job: str
    attempt: int  # how often it has been started again
    host: str  # where the hook runs
    capture: str  # HOST:PATH, "" where there is none
    culprits_total: int
    incident: HookIncident


def encode(call: HookCall) -> bytes:
    """Return a call as JSON of bounded size."""
    hang = call.incident
    hang = replace(
        hang,
        id=_plain(hang.id),
        job=_plain(hang.job),
        cause=_plain(hang.cause),
        certainty=_plain(hang.certainty),
        summary=_plain(hang.summary, TEXT_CHARS_MAX),
        advice=_plain(hang.advice, TEXT_CHARS_MAX),
        opened_at=_plain(hang.opened_at),
        culprits=tuple(_culprit(each) for each in hang.culprits[:CULPRITS_MAX]),
    )
    plain = replace(
        call, incident=hang, job=_plain(call.job), reason=_plain(call.reason), capture=_plain(call.capture, 4096)
    )
    return json_bytes(msgspec.json.encode(plain)) + b"\n"


def environment(environ: Mapping[str, str], call: HookCall) -> dict[str, str]:
    """Return the environment of a hook: that of its parent, with the job, and without being watched itself."""
    return {**environ, config.ENV_JOB: call.job, config.ENV_DISABLE: "1"}


class Budget:
    """Counts the runs of one agent or one `ncclwatch run`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._newest: deque[float] = deque(maxlen=HOURLY_MAX)  # when they began

    def refusal(self, of_attempt: int) -> str:
        """Return why no further one may begin, "" and count it if it may. `of_attempt`: runs of its attempt before."""
        now = self._clock()
        if of_attempt >= PER_ATTEMPT_MAX:
            return f"it has been run {PER_ATTEMPT_MAX} times for this attempt of the job"
        if len(self._newest) == HOURLY_MAX and now - self._newest[0] < HOUR_S:
            return f"hooks have been run {HOURLY_MAX} times here within an hour"
        self._newest.append(now)
        return ""


def problem(command: Sequence[str]) -> str:
    """Return why a hook cannot be run here, "" if it can, as far as that can be seen."""
    path = Path(command[0])
    try:
        found = path.stat()
    except OSError as error:
        listed = ", ".join(f'"{word}"' for word in command[0].split())
        hint = f"; arguments go into a list: hook = [{listed}]" if " " in command[0] and len(command) == 1 else ""
        return f"{path}: {error.strerror}{hint}"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is not a file"
    if found.st_mode & stat.S_IWOTH:
        return f"{path} may be written by every user: chmod o-w {path}"
    if not os.access(path, os.X_OK):
        return f"{path} is not executable: chmod +x {path}"
    return ""


def _culprit(found: Culprit) -> Culprit:
    site = found.call_site
    if site is not None:
        site = replace(site, file=_plain(site.file, 1000), function=_plain(site.function))
    return replace(
        found, host=_plain(found.host), device=_plain(found.device), doing=_plain(found.doing), call_site=site
    )


def _plain(text: str, chars_max: int = NAME_CHARS_MAX) -> str:
    return one_line(text[:chars_max])
