"""A node reports no more, and its ranks come to nothing any more: it is down, cut off, or without its processes."""

from collections.abc import Sequence

from ncclwatch.contract.model.job import Contact, QuietNode
from ncclwatch.contract.model.verdict import Cause, Culprit, Evidence, Severity
from ncclwatch.contract.words.text import ranks_words, seconds_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames.ends import end_evidence
from ncclwatch_server.judge.telling.evidence import block_evidence
from ncclwatch_server.judge.telling.words import waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.ends.kinds import SAME_TIME_S
from ncclwatch_server.judge.theory.finders.lost_nodes import GONE
from ncclwatch_server.judge.theory.roots import LostNodesRoot, Root

ADVICE = (
    "Ping <host> and look at its console or power controller. If it is down, restart the job without it; if it "
    "answers, look at the switch, the cable and the firewall between the nodes."
)
_ADVICE_PROCESSES = (
    "Log in to <host>: see whether it was restarted (uptime), whether its processes were killed (dmesg, the "
    "scheduler's log) or stand still (top, vmstat), then restart the job."
)
_ADVICE_REACHED = (
    "Log in to <host> and look at what its ranks do (ncclwatch diagnose, py-spy dump); and look at the network between "
    "<host> and the server."
)
_ADVICE_CONTAINER = (
    "Find out who ended <host>. Its scheduler says so (kubectl describe pod: OOMKilled, Evicted; Slurm: "
    "sacct), and the kernel log (dmesg) names what was killed for want of memory. Then restart the job."
)
_ADVICE = {Contact.MUTE: ADVICE, Contact.REACHED: _ADVICE_REACHED}
HOSTS_MAX = 4  # that a sentence names


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain ranks whose nodes report no more while others wait for them."""
    if not isinstance(root, LostNodesRoot):
        return None
    hosts = _hosts(root.nodes)
    waiting = _echo_words(root) if root.echoes else waiting_words(case, root.blocks, root.ranks)
    there = f"{ranks_words(root.ranks)} {'is' if len(root.ranks) == 1 else 'are'} on {hosts}"
    advice = _ADVICE.get(root.nodes[0].contact, _ADVICE_PROCESSES)
    if root.echoes:
        advice = _ADVICE_CONTAINER
    return Explanation(
        cause=Cause.NODE_LOST,
        summary=f"{there}, which {_state(root.nodes)}, and {waiting}.",
        explanation=_of_vanished(root, hosts) if root.echoes else _explanation(root, hosts),
        advice=advice.replace("<host>", hosts),
        culprits=tuple(
            Culprit(rank=rank, host=node.host, doing=f"its node {_state((node,))}")
            for node in root.nodes
            for rank in node.ranks
        ),
        victims=root.victims,
        one_of=bool(root.echoes) and len(root.nodes) > 1,
        severity=_severity(case, root),
        evidence=(
            *(Evidence(source="agent", rank=node.ranks[0], fact=_fact(node)) for node in root.nodes[:16]),
            *(block_evidence(block) for block in root.blocks[:16]),
            *(end_evidence(case, root.echoes[:16]) if root.echoes else ()),
        ),
    )


def _severity(case: Case, root: LostNodesRoot) -> Severity:
    """Return how urgent it is. Where no rank is left the job may have been cancelled, and blocks no device any more."""
    if root.echoes and not case.snapshot.unasked and all(view.ending is not None for view in case.views.values()):
        return Severity.WARNING
    return Severity.CRITICAL if root.nodes[0].contact in GONE and not root.in_doubt else Severity.WARNING


def _echo_words(root: LostNodesRoot) -> str:
    return f"{ranks_words(sorted(root.echoes))} ended for the loss of a peer"


def _of_vanished(root: LostNodesRoot, hosts: str) -> str:
    earlier_s = min(node.contact_s for node in root.nodes) - root.onset_s
    when = f"{seconds_words(earlier_s)} before" if earlier_s > SAME_TIME_S else "at about the time when"
    return (
        f"The connection to the agent on {hosts} was closed from there {when} rank {root.echoes[0]} ended, and no "
        f"other agent has come. Nothing is known of any rank that ended for a reason of its own: agent and ranks on "
        f"{hosts} most likely ended all at once, as when a container is killed (out of memory, evicted, deleted with "
        "its job), or when its first process ends."
    )


def _hosts(nodes: Sequence[QuietNode]) -> str:
    hosts = tuple(dict.fromkeys(node.host for node in nodes))  # one host may have an agent for each of several users
    names = list(hosts[:HOSTS_MAX])
    if len(hosts) > HOSTS_MAX:
        names.append(f"{len(hosts) - HOSTS_MAX} more hosts")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _state(nodes: Sequence[QuietNode]) -> str:
    """Return what is seen of nodes of which the same is seen."""
    least = min(nodes, key=lambda node: node.silent_s)
    has, its = ("has", "its") if len(nodes) == 1 else ("have", "their")
    lasts = seconds_words(least.silent_s)
    if least.contact is Contact.MUTE:
        return f"{has} not answered for {lasts}"
    if least.contact is Contact.REACHED:
        return f"{has} not answered the server for {lasts}"
    if least.contact is Contact.CLOSED:
        return f"{has} closed {its} connection and not been heard of for {lasts}"
    return f"{has} reported nothing for {lasts}"


def _explanation(root: LostNodesRoot, hosts: str) -> str:
    one = len(root.nodes) == 1
    here = ranks_words(sorted({block.rank for block in root.blocks}))
    met = f"and no collective that {here} issued since then has completed with {'it' if one else 'them'}"
    if root.nodes[0].contact is Contact.REACHED:
        return _of_reached(root, hosts, met)
    return f"{_WHY[root.nodes[0].contact](hosts, met, one)}{_alternative(root)}{_late(root)}"


def _of_mute(hosts: str, met: str, one: bool) -> str:
    is_down = "has lost power, has crashed" if one else "have lost power, have crashed"
    return (
        f"No packet that is sent to {hosts} is acknowledged, not even by the operating system there, {met}: {hosts} "
        f"{is_down}, or {'is' if one else 'are'} cut off from the network."
    )


def _of_reached(root: LostNodesRoot, hosts: str, met: str) -> str:
    """Return that a node is up. Nobody knows what its ranks do."""
    one = len(root.nodes) == 1
    others = dict.fromkeys(node.reached_from for node in root.nodes)
    peers = f"{next(iter(others))} does" if len(others) == 1 else "other nodes of the job do"
    return (
        f"This server gets no answer from {hosts}, but {peers}: {hosts} {'is' if one else 'are'} up, {met}. What "
        f"{'its' if one else 'their'} ranks do, nothing here shows: they stand still, or take longer than this job has "
        "let such work last."
    )


def _of_closed(hosts: str, met: str, one: bool) -> str:
    return (
        f"The connection to the agent on {hosts} was closed from there, no other agent has come, {met}: the processes "
        f"there were most likely all killed, or {hosts} {'was' if one else 'were'} restarted."
    )


def _of_silent(hosts: str, met: str, one: bool) -> str:
    return (
        f"What is sent to {hosts} is acknowledged, its agent says nothing, {met}: the processes there most likely get "
        "no CPU time, or were stopped."
    )


def _of_unknown(hosts: str, met: str, one: bool) -> str:
    return (
        f"Nothing has come from {hosts}, {met}. Whether {'it is' if one else 'they are'} down, cut off, or without "
        "processes, nothing here shows."
    )


_WHY = {
    Contact.MUTE: _of_mute,
    Contact.CLOSED: _of_closed,
    Contact.ACKNOWLEDGES: _of_silent,
    Contact.UNKNOWN: _of_unknown,
}


def _alternative(root: LostNodesRoot) -> str:
    """Return who else may be cut off, where nobody else is there to tell."""
    if not root.alone or root.nodes[0].contact is not Contact.MUTE:
        return ""
    return f" Or {root.alone} is cut off, where this server runs: no other host of the job reports."


def _late(root: LostNodesRoot) -> str:
    """Return the harmless explanation, while there is one."""
    if not root.in_doubt:
        return ""
    one = len(root.nodes) == 1
    if root.nodes[0].contact is not Contact.MUTE:
        who, its = ("its agent has", "its") if one else ("their agents have", "their")
        return f" Or only {who} stopped, and {its} ranks are busy."
    which = "it, and its" if one else "them, and their"
    return f" Or only this server cannot reach {which} ranks are busy: the wait is not yet too long for that."


def _fact(node: QuietNode) -> str:
    last = f"{node.host} reported last {seconds_words(node.silent_s)} ago"
    if node.contact is Contact.MUTE:
        return f"{last}; its kernel has acknowledged nothing for {seconds_words(node.contact_s)}"
    if node.contact is Contact.REACHED:
        return f"{last}; its kernel acknowledges nothing to this server, and answers {node.reached_from}"
    if node.contact is Contact.CLOSED:
        return f"{last}; its connection was closed {seconds_words(node.contact_s)} ago"
    if node.contact is Contact.ACKNOWLEDGES:
        return f"{last}; its kernel acknowledges what is sent"
    return last


RULE = Rule(cause=Cause.NODE_LOST, advice=ADVICE, recognise=recognise)
