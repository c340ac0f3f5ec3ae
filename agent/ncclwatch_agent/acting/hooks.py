"""Runs the hook that the owner of a job has named in its policy, before this agent does what it has decided.

Of all agents of a job one runs it for an incident: each asks its server, which grants it to the first one and to no
other ever after. The others wait until it has ended, and at most as long as it may take.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ncclwatch.contract.machine import boot
from ncclwatch.contract.on_hang import hook
from ncclwatch.contract.on_hang.decision import Decision
from ncclwatch.contract.on_hang.hangs import HookFacts, Hooks, OpenHang
from ncclwatch.contract.on_hang.hook import Budget, HookCall, HookIncident
from ncclwatch.contract.on_hang.hook_process import ENDED_S_MAX, HookProcess, HookResult
from ncclwatch.contract.on_hang.policy import Policy
from ncclwatch_agent.log import log
from ncclwatch_agent.process.procfs import user_of
from ncclwatch_agent.ranks.jobs import LocalJob

GRANT_S = 10.0  # a server has so long to say which agent runs a hook
NEWS_S = 5.0  # the end of a hook on another node is heard of within that time

Say = Callable[[LocalJob, str], None]


class HookDesk:
    """The hooks that this agent runs, of all jobs."""

    def __init__(self, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self.say = say
        self.clock = clock
        self.budget = Budget(clock)
        self._processes: list[HookProcess] = []

    @property
    def running(self) -> bool:
        """Whether a hook runs, so that somebody has to see that it ends."""
        return any(each.result is None for each in self._processes)

    def begin(self, policy: Policy, call: HookCall) -> HookProcess:
        """Start a hook."""
        self._processes = [each for each in self._processes if each.result is None]
        what = f"job {call.job}: hook of incident {call.incident.id}"
        process = HookProcess(
            policy.hook,
            hook.encode(call),
            policy.hook_timeout_s,
            hook.environment(os.environ, call),
            ended=lambda result: _log(what, result),
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End those that run: nobody would see to it that they end."""
        for each in self._processes:
            if each.result is None:
                each.end()


@dataclass(slots=True, kw_only=True)
class _Wanted:
    """A hook of one incident."""

    hang: OpenHang
    decision: Decision
    since: float  # monotonic
    asks: bool  # this agent may run it
    process: HookProcess | None = None
    over: bool = False


class JobHooks:
    """The hooks of one attempt of a job."""

    def __init__(self, job: LocalJob, policy: Policy, desk: HookDesk) -> None:
        self._job = job
        self._policy = policy
        self._desk = desk
        self._wanted: dict[str, _Wanted] = {}  # by incident
        self._problem = hook.problem(policy.hook)
        if self._problem:
            self._say(
                f"the hook {self.name} cannot be run on this node, and hangs are acted on without it: {self._problem}"
            )

    @property
    def name(self) -> str:
        """Return what it is called: its path."""
        return self._policy.hook[0]

    def is_over(self, hang: OpenHang, decision: Decision, told: Hooks | None) -> bool:
        """Ask for the hook of a hang once. Returns whether it has ended, or is waited for no more."""
        known = self._wanted.get(hang.incident)
        if known is None:
            known = self._wanted[hang.incident] = self._ask(hang, decision, told)
        self.hear(told)
        self.attend()
        if not known.over and known.process is None:
            known.over = self._may_go_on(known, told or Hooks())
            if known.over:
                self._report_over(hang.incident)
        return known.over

    def hear(self, told: Hooks | None) -> None:
        """Begin with the hooks that the server has granted to this agent."""
        for facts in told.granted if told is not None else ():
            known = self._wanted.get(facts.incident)
            if known is not None and known.asks and not known.over and known.process is None:
                self._begin(known, facts)

    def attend(self) -> None:
        """Note which hooks have ended."""
        for incident, known in self._wanted.items():
            if known.over or known.process is None or known.process.result is None:
                continue
            known.over = True
            result = known.process.result
            self._say(f"hook {self.name} {result.words} (incident {incident})")
            self._report_over(incident)

    def _ask(self, hang: OpenHang, decision: Decision, told: Hooks | None) -> _Wanted:
        wanted = _Wanted(hang=hang, decision=decision, since=self._desk.clock(), asks=False)
        why_not = self._problem or self._foreign()
        if told is None:
            self._say(f"the hook {self.name} is not run: the server is of a version that knows of none")
            wanted.over = True
        elif why_not:
            if why_not != self._problem:
                self._say(f"the hook {self.name} is not run on this node: {why_not}")
            wanted.over = not self._job.spans_nodes()
        elif why_not := self._desk.budget.refusal(len(self._wanted)):
            self._say(f"the hook {self.name} is not run for incident {hang.incident}: {why_not}")
            wanted.over = True
        else:
            wanted.asks = True
            self._job.hooks[hang.incident] = False
            self._job.announce_again = True
        return wanted

    def _foreign(self) -> str:
        """Return why this agent may run nothing for the owner of a job: it is another user."""
        for rank in self._job.everyone():
            user = user_of(rank.header.pid) if rank.is_here else -1
            if user not in (-1, os.geteuid()):
                return f"rank {rank.rank} belongs to uid {user}, and this agent runs as uid {os.geteuid()}"
        return ""

    def _begin(self, known: _Wanted, facts: HookFacts) -> None:
        hang, job = known.hang, self._job.key
        action = known.decision.action.value
        call = HookCall(
            action=action,
            reason=known.decision.reason,
            job=job.job,
            attempt=job.attempt,
            host=boot.host_name(),
            capture=facts.capture,
            culprits_total=len(hang.hang.ranks),
            incident=HookIncident(
                id=hang.incident,
                job=job.job,
                cause=hang.hang.cause,
                certainty=hang.hang.certainty,
                summary=hang.sentence,
                advice=hang.advice,
                culprits=facts.culprits,
                one_of=facts.one_of,
                opened_at=facts.opened_at,
                world_size=job.world_size,
            ),
        )
        self._say(f"running hook {self.name} ({action}; incident {hang.incident})")
        known.process = self._desk.begin(self._policy, call)

    def _may_go_on(self, known: _Wanted, told: Hooks) -> bool:
        """Whether a hook that does not run here is over, or waited for no more."""
        incident, waited_s = known.hang.incident, self._desk.clock() - known.since
        if incident in told.over:
            return True
        if incident in told.taken:
            known.asks = False  # a server that is started again must not grant it here, though another agent has run it
            self._job.hooks.pop(incident, None)
            return waited_s >= self._policy.hook_timeout_s + ENDED_S_MAX + NEWS_S
        if waited_s < GRANT_S:
            return False
        if known.asks:
            self._say(f"the hook {self.name} is not run: the server has granted it to nobody (incident {incident})")
        return True

    def _report_over(self, incident: str) -> None:
        if incident in self._job.hooks:
            self._job.hooks[incident] = True
            self._job.announce_again = True

    def _say(self, sentence: str) -> None:
        self._desk.say(self._job, sentence)


def _log(what: str, result: HookResult) -> None:
    log.info("%s %s", what, result.words)
    for line in result.lines:
        log.info("%s: %s", what, line)
