"""Runs the hook of a policy for `ncclwatch run`, before it ends its command."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ncclwatch.cli.client.answers import Incident, Node
from ncclwatch.contract.machine import boot
from ncclwatch.contract.on_hang import hook
from ncclwatch.contract.on_hang.decision import Decision
from ncclwatch.contract.on_hang.hook import Budget, HookCall, HookIncident
from ncclwatch.contract.on_hang.hook_process import ENDED_S_MAX, HookProcess
from ncclwatch.contract.on_hang.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    incident: str
    process: HookProcess


class CommandHooks:
    """The hooks of one command, in all its attempts. One thread calls `run` and `tell_ended`."""

    def __init__(
        self,
        policy: Policy,
        tell: Callable[[str], None],
        *,
        of_several: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Run the hook of a policy. `of_several`: other nodes may run their part of the job, and follow it as well."""
        self._policy = policy
        self._tell = tell
        self._of_several = of_several
        self._budget = Budget(clock)
        self._seen: set[str] = set()  # incidents of which it was decided whether it runs
        self._of_attempt: dict[int, int] = {}  # how many have run
        self._begun: list[_Begun] = []

    @property
    def running(self) -> bool:
        """Whether one has begun of which it was not told how it has ended."""
        return bool(self._begun)

    @property
    def seconds_max(self) -> float:
        """Return for how long one that has begun is waited for."""
        return self._policy.hook_timeout_s + ENDED_S_MAX

    def run(self, incident: Incident, decision: Decision, *, attempt: int, capture: str, nodes: Sequence[Node]) -> None:
        """Start the hook of an incident, once. The job is ended for it: wait until it has ended.

        `attempt`: how often the command was started again. `capture`: a file on this host, or "".
        """
        if incident.id not in self._seen:
            self._seen.add(incident.id)
            self._begin(incident, decision, attempt, capture, nodes)
        if decision.action.ends:
            self.tell_ended(wait=True)

    def tell_ended(self, *, wait: bool = False) -> None:
        """Tell how those ended that have. `wait`: until all have."""
        for each in list(self._begun):
            result = each.process.wait() if wait else each.process.result
            if result is None:
                continue
            self._begun.remove(each)
            self._say(f"hook {self._name} {result.words} (incident {each.incident})")
            for line in result.lines:
                self._say(f"  {line}")

    def _begin(self, incident: Incident, decision: Decision, attempt: int, capture: str, nodes: Sequence[Node]) -> None:
        host = boot.host_name()
        elsewhere = _host_of_lowest(nodes) if self._of_several else host
        if elsewhere != host:
            self._say(f"the hook of incident {incident.id} is run on {elsewhere}, which has the lowest rank")
            return
        if why_not := self._budget.refusal(self._of_attempt.get(attempt, 0)):
            self._say(f"the hook {self._name} is not run for incident {incident.id}: {why_not}")
            return
        self._of_attempt[attempt] = self._of_attempt.get(attempt, 0) + 1
        call = HookCall(
            action=decision.action.value,
            reason=decision.reason,
            job=incident.job,
            attempt=attempt,
            host=host,
            capture=f"{host}:{capture}" if capture else "",
            culprits_total=len(incident.culprits),
            incident=HookIncident(
                id=incident.id,
                job=incident.job,
                cause=incident.cause,
                certainty=incident.certainty,
                summary=incident.summary,
                advice=incident.advice,
                culprits=incident.culprits,
                one_of=incident.one_of,
                opened_at=incident.opened_at,
                world_size=incident.world_size,
            ),
        )
        self._say(f"running hook {self._name} ({decision.action.value}; incident {incident.id})")
        environ = hook.environment(os.environ, call)
        process = HookProcess(self._policy.hook, hook.encode(call), self._policy.hook_timeout_s, environ)
        self._begun.append(_Begun(incident=incident.id, process=process))

    @property
    def _name(self) -> str:
        return self._policy.hook[0]

    def _say(self, sentence: str) -> None:
        self._tell(f"ncclwatch: {sentence}\n")


def _host_of_lowest(nodes: Sequence[Node]) -> str:
    """Return the host of the lowest rank whose agent is connected, this one where nobody knows."""
    known = [(min(node.ranks), node.host) for node in nodes if node.ranks and node.connected]
    return min(known)[1] if known else boot.host_name()
