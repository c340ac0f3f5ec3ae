"""Says under which name a server shows the host of an agent, so that no token can pass its ranks off as another's.

What a host is called is what its agent says. A name belongs to the tokens that are bound to it with `host=`; one to
which no token is bound, to the first token whose living agent uses it. Others are shown with their token behind the
name, as `gpu-a-1~team-b`. They are not refused: hosts of two teams may have one name, as pods do, and who came first
may be who lies. On one machine, as its agents prove (`boot.machine`), tokens share a name: several users work there.
"""

import re
from collections import Counter
from collections.abc import Iterable

from ncclwatch.contract.network.tokens import Bounds
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.security.scopes import Caller

_MARK = "~"
_PLAIN = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


class HostNames:
    """The names of hosts, and whose they are."""

    def __init__(self, bound: Iterable[tuple[str, Bounds]] = ()) -> None:
        self._bound = tuple((holder, bounds) for holder, bounds in bound if bounds.hosts)
        self._users: dict[str, Counter[tuple[str, str]]] = {}  # living agents by name, by token and machine

    def shown(self, caller: Caller, host: str, machine: str) -> str:
        """Return under which name a host is shown of which an agent of this token on this machine tells."""
        if caller.holder and not _PLAIN.fullmatch(host):
            return f"{host}{_MARK}{caller.name}"  # no host is called so, and it may look like the name of another one
        owners = {holder for holder, bounds in self._bound if bounds.allow_host(host)}
        if not owners:
            owners = {holder for holder, _ in list(self._users.get(host, ()))[:1]}
        if not owners or caller.holder in owners or (machine and machine in self._machines(host, owners)):
            return host
        return f"{host}{_MARK}{caller.name}"

    def _machines(self, host: str, owners: set[str]) -> set[str]:
        return {machine for holder, machine in self._users.get(host, ()) if holder in owners}

    def enter(self, link: Link) -> None:
        """Note an agent that was let in."""
        self._users.setdefault(link.host, Counter())[link.caller.holder, link.machine] += 1

    def leave(self, link: Link) -> None:
        """Note that it has gone."""
        users = self._users[link.host]
        users[link.caller.holder, link.machine] -= 1
        users += Counter()  # without those that are none any more
        if not users:
            del self._users[link.host]
