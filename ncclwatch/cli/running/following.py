"""Follows the job that `ncclwatch run` started: asks the server, in a thread of its own.

Nothing here can hold up the training: a server that does not answer is told of once, and asked again.
"""

import contextlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from ncclwatch.cli.client.answers import Incident, Job, Node
from ncclwatch.cli.client.http import Client, NotDone, NotKnown, ServerUnreachable
from ncclwatch.cli.running.hooks import CommandHooks
from ncclwatch.contract import config, job_names
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.model.verdict import Lateness
from ncclwatch.contract.on_hang.decision import Decision, Hang, decide, settled_s, urgency
from ncclwatch.contract.on_hang.policy import Action, Policy
from ncclwatch.contract.words.console import Colour, put, width
from ncclwatch.contract.words.printable import json_text
from ncclwatch.contract.words.text import seconds_words

POLL_S = 0.3
RETRY_S = 2.0  # while the server does not answer
CAPTURE_S = 5.0  # a capture waits so long for stacks that nobody has looked at yet
DECIDING_S = 30.0  # a capture takes no longer
CAPTURES_MAX = 5  # of one command, beside those that are taken before it is ended
LAST_NEWS_S = 4.0  # after the end of the command
OVERLAP_S = 60.0  # incidents that opened so long before the command are known to be of a former one
SILENT_S = 30.0  # the server of this run may be slow for so long before it is told of
_TOLD = ("critical", "warning")
_FATE = ("state", "closed_at", "recovered_after_s", "came_back_as", "came_back_from", "lost_s")  # of an incident
_Fields = dict[str, msgspec.Raw]
_MARKS = {"ncclwatch: CRITICAL ": Colour.RED, "ncclwatch: WARNING ": Colour.YELLOW}


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a server (`ncclwatch_server.incidents.report`), as far as this has to understand it."""

    schema: int
    job: str
    world_size: int
    incidents: tuple[msgspec.Raw, ...]


class _Identified(msgspec.Struct, frozen=True, kw_only=True):
    id: str


class Wanted(NamedTuple):
    """What is to be done, and about which hang."""

    decision: Decision
    hang: Hang


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """What is known of the former attempts of a command that has been started again."""

    hangs: tuple[Hang, ...] = ()  # for which it was
    incidents: frozenset[str] = frozenset()
    reported: tuple[msgspec.Raw, ...] = ()
    captures: int = 0  # that were taken


def hang_of(incident: Incident) -> Hang:
    """Return what of an incident decides what is done about it."""
    sites = (culprit.call_site for culprit in incident.culprits)
    return Hang(
        cause=incident.cause,
        certainty=incident.certainty,
        ranks=frozenset(culprit.rank for culprit in incident.culprits),
        places=frozenset(f"{site.file}:{site.line}" for site in sites if site is not None),
        saved=incident.saved,
        traced=any(culprit.traced for culprit in incident.culprits),
    )


class OwnServer(Protocol):
    """A server that was started for this command, as far as this has to know it."""

    ready: bool  # whether it has answered when the command began

    @property
    def alive(self) -> bool:
        """Whether its process lives."""


class Following:
    """Follows one job by its name, tells of each incident once and when it grows urgent, and collects the report."""

    def __init__(  # noqa: PLR0913 - what is done and where it is kept: each is another one in tests
        self,
        client: Client,
        job: str,
        tell: Callable[[str], None],
        own: OwnServer | None = None,
        *,
        policy: Policy | None = None,
        keep_capture: Callable[[str, bytes], Path] | None = None,
        hooks: CommandHooks | None = None,
        before: "Attempts | None" = None,
        verbose: bool = False,
    ) -> None:
        """Follow a job.

        `policy`: what is done about a hang, by default nothing. `keep_capture`: writes a capture of a job to a file,
        and raises OSError or `ConfigError`; None: none is taken. `hooks`: runs the hook of the policy, if it has one.
        `before`: former attempts of it.
        """
        self.wanted: Wanted | None = None
        self.certain = threading.Event()  # there is a hang of which no more is to be learned by waiting
        self._client = client
        self._job = job
        self._tell = tell
        self._before = before or Attempts()
        self._earlier = self._before.incidents  # of former jobs of this name
        self._reported = {msgspec.json.decode(each, type=_Identified).id: each for each in self._before.reported}
        self._mine: set[str] = set()  # incidents of this command
        self._told_at: dict[str, float] = {}
        self._stands_since: dict[str, float] = {}
        self._urgent: set[str] = set()  # incidents that were told of once more
        self._keep_capture = keep_capture
        self._deciding = threading.Event()  # set unless something is about to be wanted, and a capture is taken before
        self._deciding.set()
        self._captured: dict[str, str] = {}  # captures that were taken, or tried and so "", by incident
        self._hooks = hooks
        self._nodes: tuple[Node, ...] = ()  # of the job
        self._noticed: set[str] = set()  # notices that were told of
        self._report = _Report(schema=1, job=job, world_size=0, incidents=())
        self._own = own
        self._verbose = verbose  # incidents are told with all that is known of them
        self._policy = policy
        self._final: dict[str, _Fields] = {}  # incidents as they were then: how a job dies is no news of its hang
        self._unreachable = ""
        self._complained = False
        self._began = self._answered = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ncclwatch-follow", daemon=True)

    def begin(self) -> None:
        """Look at what was there before the command. An unreachable server is told of."""
        self._began = self._answered = time.monotonic()
        if self._own is not None:  # before it there was nothing
            self._complained = not self._own.ready
            return
        try:
            self._client.check()
            self._earlier |= {i.id for i in self._client.incidents(OVERLAP_S) if self._is_mine(i.job)}
        except ServerUnreachable as error:
            self._complain(error)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    @property
    def ranks_seen(self) -> bool:
        """Whether any rank of the job has reported, as far as the server has told."""
        return bool(self._report.world_size) or bool(self._unreachable)

    def decided(self) -> "Wanted | None":
        """Return what is wanted, once a capture that is under way has been taken, and a hook has ended."""
        self._deciding.wait(DECIDING_S + (self._hooks.seconds_max if self._hooks is not None else 0.0))
        return self.wanted

    @property
    def told(self) -> int:
        """How many incidents were told of."""
        return len(self._told_at)

    def finish(self) -> bytes:
        """Hear the last news of the command that has ended, and return the report."""
        self._ending.set()
        self._thread.join(LAST_NEWS_S + 1.0)
        if self._hooks is not None and self._hooks.running:
            self._thread.join(self._hooks.seconds_max)
            self._hooks.tell_ended(wait=True)
        incidents = (*self._report.incidents, *self._reported.values())
        return _written(msgspec.structs.replace(self._report, incidents=incidents))

    def and_before(self, hang: Hang) -> "Attempts":
        """Return what there is to know for the next attempt, that begins because of a hang."""
        return Attempts(
            hangs=(*self._before.hangs, hang),
            incidents=self._earlier | self._mine,
            reported=(*self._report.incidents, *self._reported.values()),
            captures=self._before.captures + len(self._captured),
        )

    def _run(self) -> None:
        deadline = float("inf")
        while True:
            ending = self._ending.is_set()
            if ending:
                deadline = min(deadline, time.monotonic() + LAST_NEWS_S)
            over = self._look()
            if ending and (over or time.monotonic() >= deadline):
                return
            if ending:
                time.sleep(POLL_S / 3)
            else:
                self._ending.wait(RETRY_S if self._unreachable else POLL_S)

    def _look(self) -> bool:
        """Ask once. Returns whether no more news is to be expected of an ended command."""
        try:
            # Jobs first: what was judged before a job was called ended is then in the incidents.
            jobs = [job for job in self._client.jobs() if self._is_mine(job.id)]
            self._nodes = tuple(node for job in jobs for node in job.nodes)
            self._note_answer()
            if self._hooks is not None:
                self._hooks.tell_ended()
            for notice in dict.fromkeys(notice for job in jobs for notice in job.notices if self._own is not None):
                self._notice(notice)
            incidents = [i for i in self._lately() if self._is_mine(i.job) and i.id not in self._earlier]
            if not self._final:
                self._mine |= {incident.id for incident in incidents}
                hung = any(incident.severity == "critical" for incident in incidents)
                told = [i for i in reversed(incidents) if not (hung and i.predicted)]  # what has happened is no news
                stand = [(incident, self._consider(incident)) for incident in told]
                self._act([(incident, stands_s) for incident, stands_s in stand if stands_s is not None])
            self._collect(jobs)
        except (ServerUnreachable, NotKnown) as error:
            self._complain(error)
            return self._own is None or not self._own.alive
        if jobs:
            return all(job.state == "ended" for job in jobs)
        return not _is_attached(self._job)

    def _notice(self, notice: str) -> None:
        if notice not in self._noticed:
            self._noticed.add(notice)
            self._tell(f"ncclwatch: {notice}\n")

    def _consider(self, incident: Incident) -> float | None:
        """Tell of an incident. Returns for how long a hang has stood of which no more is to be learned."""
        if incident.severity not in _TOLD:
            return None
        now = time.monotonic()
        urgent = incident.lateness == Lateness.DEADLINE.value and incident.id not in self._urgent
        if incident.id not in self._told_at or urgent:
            text = self._text(incident)
            self._told_at.setdefault(incident.id, now)
            if urgent:
                self._urgent.add(incident.id)
            self._tell(text)
        hangs = incident.severity == "critical" and incident.state == "open"
        if not hangs:
            self._stands_since.pop(incident.id, None)  # it may come back, and stands anew then
            return None
        stands_s = now - self._stands_since.setdefault(incident.id, now)
        settled = stands_s >= settled_s(incident.cause, one_of=incident.one_of, seen=bool(incident.stacks))
        return stands_s if settled else None

    def _act(self, hangs: Sequence[tuple[Incident, float]]) -> None:
        """Do what the policy says of hangs. What is wanted of several is what no restart cures."""
        if self._policy is not None:
            before = self._before.hangs
            decided = []
            for incident, stands_s in hangs:
                hang = replace(hang_of(incident), attempt=len(before))
                decided.append((incident, Wanted(decide(self._policy, hang, stands_s, before), hang)))
            for incident, wanted in sorted(decided, key=lambda each: urgency(each[1].decision)):
                if self.wanted is None:
                    self._prepare(incident, wanted)
        if hangs:
            self.certain.set()

    def _prepare(self, incident: Incident, wanted: Wanted) -> None:
        """Take a capture and run the hook, and then say what is wanted."""
        decision = wanted.decision
        if decision.action is not Action.REPORT:
            self._deciding.clear()
            self._capture(incident, ends=decision.action.ends)
        if self._hooks is not None and decision.settled:
            self._deciding.clear()
            self._hooks.run(
                incident,
                decision,
                attempt=len(self._before.hangs),
                capture=self._captured.get(incident.id, ""),
                nodes=self._nodes,
            )
        if decision.action.ends and not self._goes_on(incident.id):
            self.wanted = wanted
        self._deciding.set()

    def _goes_on(self, incident: str) -> bool:
        """Whether a hang is over now: a capture and a hook take their time, and a hook may cure it."""
        with contextlib.suppress(ServerUnreachable, NotKnown):
            if any(each.id == incident and each.state == "resolved" for each in self._lately()):
                self._tell(f"ncclwatch: not ending the command: it goes on (incident {incident})\n")
                return True
        return False

    def _lately(self) -> Sequence[Incident]:
        """Return all incidents since the command began, and of a little before."""
        return self._client.incidents(time.monotonic() - self._began + OVERLAP_S / 2)

    def _capture(self, incident: Incident, *, ends: bool) -> None:
        """Write what is known of a hang to a file, once. `ends`: the command is ended for it, and all of it is gone."""
        if self._keep_capture is None or incident.id in self._captured:
            return
        if not ends and self._before.captures + len(self._captured) >= CAPTURES_MAX:
            return
        self._captured[incident.id] = ""
        try:
            path = self._keep_capture(self._job, self._client.capture(incident.job, CAPTURE_S))
        except (ServerUnreachable, NotKnown, NotDone, ConfigError) as error:
            self._tell(f"ncclwatch: no capture of this hang: {error}\n")
        except OSError as error:
            self._tell(f"ncclwatch: cannot keep a capture of this hang ({error}); set {config.ENV_CAPTURES}\n")
        else:
            self._captured[incident.id] = str(path)
            named = shlex.quote(str(path))
            self._tell(f"ncclwatch: all that is known of this hang: {named}; ncclwatch analyze {named}\n")

    def _text(self, incident: Incident) -> str:
        if self._verbose:
            return self._client.incident_text(incident.id)
        text = self._client.incident_brief(incident.id, width(error=True))
        if self._own is None:
            return text
        # Of a server that ends with the command there is a page now, and a report afterwards.
        lines = [line for line in text.splitlines() if not line.startswith("  more ")]
        lines.append(f"  page      {self._client.url}/incidents/{incident.id} (while the command runs)")
        return "\n".join(lines) + "\n"

    def _collect(self, jobs: list[Job]) -> None:
        """Keep the newest report, without what was there before the command."""
        parts = [msgspec.json.decode(self._client.report(job.id), type=_Report) for job in jobs]
        told = {msgspec.json.decode(each, type=_Identified).id: each for part in parts for each in part.incidents}
        found = {known: incident for known, incident in told.items() if known in self._mine}
        for known in self._reported.keys() & told.keys():
            self._reported[known] = _ended(_fields(self._reported[known]), told[known])
        if not parts:
            return
        if self._final:
            found = {known: _ended(fields, found.get(known)) for known, fields in self._final.items()}
        elif self.wanted is not None:
            self._final = {known: _fields(incident) for known, incident in found.items()}
        world_size = max(part.world_size for part in parts)
        self._report = _Report(schema=1, job=self._job, world_size=world_size, incidents=tuple(found.values()))

    def _complain(self, error: Exception) -> None:
        self._unreachable = str(error)
        words = f"{error}. The training runs on, unwatched."
        if self._own is not None and self._own.alive:
            silent_s = time.monotonic() - self._answered
            if silent_s < SILENT_S:
                return
            words = (
                f"the server of this run lives and has not answered for {seconds_words(silent_s)}; this machine may be "
                "too busy. The training runs on, and is watched as soon as it answers."
            )
        elif self._own is not None:
            words = "the server of this run has ended. The training runs on, unwatched."
        if not self._complained:
            self._tell(f"ncclwatch: {words}\n")
        self._complained = True

    def _note_answer(self) -> None:
        if self._complained and self._own is not None:
            self._tell("ncclwatch: the server of this run answers, and the training is watched.\n")
        self._unreachable, self._complained, self._answered = "", False, time.monotonic()

    def _is_mine(self, job: str) -> bool:
        # Two jobs of one name are told apart by the server with a "~".
        return job == self._job or job.startswith(f"{self._job}~")


def empty_report(job: str) -> bytes:
    """Return the report of a command of which nothing was seen."""
    return _written(_Report(schema=1, job=job, world_size=0, incidents=()))


def _written(report: _Report) -> bytes:
    return f"{json_text(msgspec.json.encode(report))}\n".encode()


def _fields(incident: msgspec.Raw) -> _Fields:
    return msgspec.json.decode(incident, type=_Fields)


def _ended(before: _Fields, now: msgspec.Raw | None) -> msgspec.Raw:
    """Return an incident as it was when the command was ended, with what has become of it since."""
    since = _fields(now) if now is not None else {}
    return msgspec.Raw(msgspec.json.encode({**before, **{name: since[name] for name in _FATE if name in since}}))


def tell(text: str) -> None:
    """Write to standard error at once. The training's own output is not touched."""
    with contextlib.suppress(OSError, ValueError):
        put(*text.removesuffix("\n").split("\n"), error=True, marks=_MARKS)


def _is_attached(job: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether ranks of the job left rings on this node of which the agent has not told all."""
    return Path(config.runtime_dir(environ), job_names.to_directory(job)).is_dir()
