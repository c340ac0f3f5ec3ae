"""Decides which agent of a job runs the hook of an incident: the one that was the first to ask, and never another."""

from collections.abc import Collection, Mapping

from ncclwatch.contract.on_hang.hook import PER_ATTEMPT_MAX

ID_CHARS_MAX = 64


class HookGrants:
    """The hooks of one attempt of a job, by incident."""

    def __init__(self) -> None:
        self._runners: dict[str, str] = {}  # agents, by the incident whose hook each runs
        self._over: set[str] = set()

    def note(self, agent: str, asked: Mapping[str, bool]) -> None:
        """Take what an agent asks for, or has run before: this server may have been started since."""
        for incident, over in asked.items():
            if len(self._runners) < PER_ATTEMPT_MAX and len(incident) <= ID_CHARS_MAX:
                self._runners.setdefault(incident, agent)
            if over and self._runners.get(incident) == agent:
                self._over.add(incident)

    def granted(self, agent: str, incidents: Collection[str]) -> tuple[str, ...]:
        """Return the incidents whose hook an agent runs."""
        return tuple(each for each in incidents if self._runners.get(each) == agent)

    def taken(self, agent: str, incidents: Collection[str]) -> tuple[str, ...]:
        """Return the incidents whose hook another agent runs."""
        return tuple(each for each in incidents if self._runners.get(each, agent) != agent)

    def over(self, incidents: Collection[str]) -> tuple[str, ...]:
        """Return the incidents whose hook has ended."""
        return tuple(each for each in incidents if each in self._over)
