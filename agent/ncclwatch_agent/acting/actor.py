"""Decides, for each job of this node whose owner has asked for it, what is done about its hangs.

The owner says so in the environment of the job (NCCLWATCH_ON_HANG, NCCLWATCH_HANG_POLICY), which its ranks have written
into their rings. A server tells of hangs, and can end no job that did not ask.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError, WireError
from ncclwatch.contract.on_hang.decision import Decision, Hang, decide, urgency
from ncclwatch.contract.on_hang.hangs import Hangs, OpenHang, decode
from ncclwatch.contract.on_hang.policy import Action, Policy, in_force
from ncclwatch_agent.acting.ending import Ending
from ncclwatch_agent.acting.hooks import HookDesk, JobHooks
from ncclwatch_agent.acting.launcher import Launcher, launcher_of
from ncclwatch_agent.acting.notifying import Notifier
from ncclwatch_agent.log import log
from ncclwatch_agent.ranks.jobs import LocalJob

RESTART_S = 300.0  # from the end of ranks to the next attempt, at most
LAUNCHES_MAX = 64  # remembered
LOOKS_MAX = 10  # for the torchrun of a job: what is not found then is none

Tell = Callable[[LocalJob, str], None]  # puts a sentence on a job's terminal
_Launch = tuple[str, str]  # name and instance: what all attempts of one launch share


@dataclass(slots=True, kw_only=True)
class _Acting:
    policy: Policy | None
    launcher: Launcher | None = None  # found while its ranks live: they may be gone when it is needed
    looks: int = 0
    hangs: Hangs | None = None
    heard_at: float = 0.0  # monotonic
    ending: Ending | None = None
    captured: set[str] = field(default_factory=set)  # incidents whose captures were announced
    notifier: Notifier = field(default_factory=Notifier)
    hooks: JobHooks | None = None  # None: its policy names none
    differ_told: bool = False  # that its ranks ask for different things
    raised: set[str] = field(default_factory=set)  # incidents for which ranks were notified to raise


@dataclass(slots=True, kw_only=True)
class _Restarting:
    """A launch whose ranks were ended so that they are started again."""

    hangs: list[Hang]  # for which they were, one for each time
    ending: Ending
    until: float  # when it is not waited for any more; 0: it has come

    def come(self) -> None:
        """Wait for it no longer. Its launcher is held still: it may start more attempts, or be another one later."""
        self.until = 0.0


class Actor:
    """What the agent does about hangs. `tend` each job every second."""

    def __init__(self, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._jobs: dict[int, _Acting] = {}  # by the number of the job on this node
        self._restarted: dict[_Launch, _Restarting] = {}  # the newest last
        self._hooks = HookDesk(self._say, clock)

    @property
    def runs_hook(self) -> bool:
        """Whether a hook runs, whose deadline somebody has to keep."""
        return self._hooks.running

    def close(self) -> None:
        """End the hooks that run."""
        self._hooks.close()

    @property
    def awaits_restart(self) -> bool:
        """Whether ranks were ended that are about to be started again, so that somebody has to remember why."""
        now = self._clock()
        return any(now < each.until and each.ending.launcher_lives for each in self._restarted.values())

    def hear(self, job: LocalJob, text: str) -> None:
        """Take what a server tells of a job's hangs."""
        try:
            hangs = decode(text)
        except WireError as error:
            log.warning("job %s: %s", job.key.job, error)
            return
        known = self._of(job)
        known.hangs, known.heard_at = hangs, self._clock()
        if known.hooks is not None:
            known.hooks.hear(hangs.hooks)

    def tend(self, job: LocalJob, *, connected: bool) -> None:
        """Do what is due for a job. Without a connection to its server nobody knows whether a hang still stands."""
        known = self._of(job)
        if known.policy is not None and known.launcher is None and job.under_torchrun and known.looks < LOOKS_MAX:
            known.looks += 1
            known.launcher = launcher_of(rank.header.pid for rank in job.ranks.values() if rank.is_here)
            if known.launcher is not None:
                self._recognise(job, known.launcher)
        now = self._clock()
        if known.hooks is not None:
            known.hooks.attend()
        if known.ending is not None:
            for sentence in known.ending.go_on(now):
                self._say(job, sentence)
            return
        if not connected:
            known.hangs = None
        hangs = known.hangs or Hangs()
        raised = "" if known.policy is None else self._act(job, known, known.policy, hangs)
        if known.ending is None:
            known.notifier.update(job, hangs.open, raised)
        else:
            known.notifier.withdraw(job)

    def _act(self, job: LocalJob, known: _Acting, policy: Policy, hangs: Hangs) -> str:
        """Do what the policy says. Returns the incident for which ranks raise, "" for none."""
        raised, awaited = "", False
        for each, decision in self._decided(job, known, policy, hangs):
            if not self._may_follow(known, each, decision):
                awaited = True  # a hook, before the end
                continue
            if decision.action.ends and awaited:
                continue
            if decision.action is Action.CAPTURE and each.incident not in known.captured:
                known.captured.add(each.incident)
                self._say(job, f"it hangs ({_incident(each)})")
            if decision.action.ends:
                known.ending = Ending(job, known.launcher, decision.action)
                how = known.ending.words
                self._say(job, f"{how} ({decision.action.value}): {decision.reason} ({_incident(each)})")
                if known.ending.restarts:
                    self._remember(job, each.hang, known.ending)
                return ""
            if decision.action is Action.RAISE and not raised:
                raised = each.incident
                if raised not in known.raised:
                    known.raised.add(raised)
                    self._say(job, f"raising HangError in ranks that run Python (raise; {_incident(each)})")
        return raised

    def _decided(
        self, job: LocalJob, known: _Acting, policy: Policy, hangs: Hangs
    ) -> Sequence[tuple[OpenHang, Decision]]:
        """Return what is done about each hang, first what no restart cures."""
        if any(policy.action(each.hang.cause, each.hang.certainty).ends for each in hangs.open):
            differ = _differing_wishes(job)
            if differ and not known.differ_told:
                known.differ_told = True
                self._say(job, differ)
            if differ:
                return ()
        waited_s = self._clock() - known.heard_at
        mine = self._restarted.get(_launch(job))
        own = tuple(mine.hangs) if mine is not None else ()
        before, restarts = (*own, *hangs.before), max(len(own), hangs.attempts)
        found = [(each, decide(policy, each.hang, each.stands_s + waited_s, before, restarts)) for each in hangs.open]
        return sorted(found, key=lambda decided: urgency(decided[1]))

    def _may_follow(self, known: _Acting, hang: OpenHang, decision: Decision) -> bool:
        """Whether what was decided may be done now: an end comes after the hook."""
        if known.hooks is None or known.hangs is None or not decision.settled:
            return True
        return known.hooks.is_over(hang, decision, known.hangs.hooks) or not decision.action.ends

    def forget(self, job: LocalJob) -> None:
        """Let go of a job that is over."""
        known = self._jobs.pop(job.index, None)
        if known is None:
            return
        known.notifier.withdraw(job)
        if known.launcher is None:
            return
        if any(known.ending is not None and each.ending is known.ending for each in self._restarted.values()):
            return  # it is about to start the next attempt
        known.launcher.close()

    def _remember(self, job: LocalJob, hang: Hang, ending: Ending) -> None:
        before = self._restarted.pop(_launch(job), None)
        if before is not None:
            before.ending.close()
        hangs = [*(before.hangs if before is not None else ()), replace(hang, attempt=job.key.attempt)]
        self._restarted[_launch(job)] = _Restarting(hangs=hangs, ending=ending, until=self._clock() + RESTART_S)
        while len(self._restarted) > LAUNCHES_MAX:
            self._restarted.pop(next(iter(self._restarted))).ending.close()

    def _recognise(self, job: LocalJob, launcher: Launcher) -> None:
        """Take over what is remembered of an attempt of this torchrun whose ranks met at another address.

        torchrun may choose a new port for each attempt: without a store that its ranks share, or with etcd.
        """
        for launch, before in list(self._restarted.items()):
            if launch != _launch(job) and before.ending.was_started_by(launcher):
                self._restarted[_launch(job)] = self._restarted.pop(launch)
                before.come()

    def _of(self, job: LocalJob) -> _Acting:
        known = self._jobs.get(job.index)
        if known is None:
            before = self._restarted.get(_launch(job))
            if before is not None:
                before.come()
                if before.ending.launcher_gone:  # somebody has started this by hand
                    self._restarted.pop(_launch(job)).ending.close()
            policy = self._policy(job)
            hooks = JobHooks(job, policy, self._hooks) if policy is not None and policy.hook else None
            known = self._jobs[job.index] = _Acting(policy=policy, hooks=hooks)
        return known

    def _policy(self, job: LocalJob) -> Policy | None:
        try:
            return in_force(job.on_hang or Action.REPORT.value, Path(job.hang_policy) if job.hang_policy else None, {})
        except ConfigError as error:
            self._say(job, f"nothing is done about hangs: {error}")
            return None

    def _say(self, job: LocalJob, sentence: str) -> None:
        log.warning("job %s: %s", job.key.job, sentence)
        self._tell(job, sentence)


def _incident(hang: OpenHang) -> str:
    return f"incident {hang.incident}; {hang.capture}" if hang.capture else f"incident {hang.incident}"


def _differing_wishes(job: LocalJob) -> str:
    """Return in words that ranks of a job ask for different things, "" if they do not. Which one counts is unknown."""
    wishes: dict[tuple[str, str], int] = {}
    for rank in job.ranks.values():
        if rank.identity:
            wishes.setdefault((rank.identity.get("on_hang", ""), rank.identity.get("hang_policy", "")), rank.rank)
    if len(wishes) < 2:
        return ""
    said = ", and ".join(
        f"rank {rank} asks for {' of '.join(filter(None, (on_hang or 'nothing', policy)))}"
        for (on_hang, policy), rank in list(wishes.items())[:2]
    )
    return f"nothing is ended for hangs: {said}; set {config.ENV_ON_HANG} to one value on all ranks"


def _launch(job: LocalJob) -> _Launch:
    return job.key.job, job.key.instance
