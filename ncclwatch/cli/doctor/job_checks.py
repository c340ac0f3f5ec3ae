"""Checks which nodes of a job report to its server, and why others do not. It may run anywhere."""

from collections.abc import Iterator, Sequence

import msgspec

from ncclwatch.cli.client.answers import Job, Node, Refusal
from ncclwatch.cli.client.http import Client, NotKnown
from ncclwatch.cli.doctor.check import Check, failed, passed, warned
from ncclwatch.cli.doctor.server_checks import CLOCK_S_MAX
from ncclwatch.contract import config
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.words.printable import one_line
from ncclwatch.contract.words.text import rank_list, ranks_words, seconds_words

ASKED_MAX = 32  # nodes that are asked for a stack
LATELY_S = 600.0
SHOWN_MAX = 5  # of one kind
ROWS_MAX = 40
COLUMNS = ("NODE", "RANKS", "REPORTS", "VERSION", "CLOCK", "STACKS")
SILENT_S = 5.0  # agents speak each second


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one node, or of ranks for which none speaks."""

    host: str  # "" where none speaks
    ranks: tuple[int, ...]
    reports: bool
    quiet_s: float = 0.0
    version: str = ""
    clock_ahead_s: float | None = None
    stacks: str = ""  # "yes", why not, or "" if nobody has tried


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """What a server knows of a job's nodes."""

    server: str
    server_version: str
    job: Job
    nodes: tuple[NodeLine, ...]
    refused: tuple[Refusal, ...]
    untried: str  # why no stacks were asked for


def look(client: Client, job: Job) -> JobState:
    """Ask the server, and one rank on each node for its stack. Raises `NcclwatchError`."""
    try:
        refused = client.refusals()
    except NotKnown:  # an older server
        refused = ()
    living = [node for node in job.nodes if node.connected and node.ranks]
    stacks, untried = _try_stacks(client, job, living) if not job.outcome else ({}, "")
    spoken = {rank for node in job.nodes for rank in node.ranks}
    missing = tuple(rank for rank in range(job.world_size) if rank not in spoken)
    nodes = [_line(node, stacks) for node in job.nodes]
    if missing:
        nodes.append(NodeLine(host="", ranks=missing, reports=False))
    return JobState(
        server=client.url,
        server_version=client.health().version,
        job=job,
        nodes=tuple(nodes),
        refused=tuple(each for each in refused if each.ago_s <= LATELY_S and _concerns(each, job, bool(missing))),
        untried=untried,
    )


def _concerns(refusal: Refusal, job: Job, lacks: bool) -> bool:
    """Say whether a refusal may be of a node of this job: who was refused as a whole says no job."""
    return refusal.job in (job.id, job.name) if refusal.job else lacks


def _line(node: Node, stacks: dict[int, str]) -> NodeLine:
    return NodeLine(
        host=node.host, ranks=node.ranks, reports=node.connected and node.quiet_s <= SILENT_S, quiet_s=node.quiet_s,
        version=node.version, clock_ahead_s=node.clock_ahead_s, stacks=stacks.get(min(node.ranks, default=-1), ""),
    )  # fmt: skip


def _try_stacks(client: Client, job: Job, nodes: Sequence[Node]) -> tuple[dict[int, str], str]:
    """Return for one rank of each node "yes" or why it has no stack; and why nobody was asked."""
    ranks = tuple(min(node.ranks) for node in nodes[:ASKED_MAX])
    if not ranks:
        return {}, ""
    try:
        found = client.stacks(client.stacks_json(job.id, ranks, native=False))
    except NcclwatchError as error:
        return {}, one_line(str(error))
    unseen = {rank: one_line(each.why) for each in found.unseen for rank in each.ranks}
    return {rank: unseen.get(rank, "yes") for rank in ranks}, ""


def checks(state: JobState) -> Iterator[Check]:
    """Yield what is wrong with the nodes of a job, or that nothing is."""
    yield _agents(state)
    yield from _silent(state)
    yield _versions(state)
    yield _clocks(state)
    yield _stacks(state)
    for each in state.refused[:SHOWN_MAX]:
        times = f" ({each.times} times)" if each.times > 1 else ""
        yield warned(
            "refused",
            f"{each.where}, {seconds_words(each.ago_s)} ago{times}: {each.reason}",
            f"if that is a node of this job: correct what the sentence names there; its token is in "
            f"{config.ENV_AGENT_TOKEN} or {config.ENV_TOKEN} of the job's environment",
        )


def _agents(state: JobState) -> Check:
    if state.job.outcome:
        return passed("agents", f"the job is over: {state.job.outcome}")
    spoken = sum(len(node.ranks) for node in state.nodes if node.host)
    missing = next((node.ranks for node in state.nodes if not node.host), ())
    if not missing:
        hosts = sum(1 for node in state.nodes if node.host)
        return passed("agents", f"all {state.job.world_size} ranks are reported, by {hosts} agents")
    return failed(
        "agents",
        f"{spoken} of {state.job.world_size} ranks are reported; no agent speaks for {ranks_words(missing)}",
        f"on their nodes: see that the script calls ncclwatch.attach(), that {config.ENV_SERVER}={state.server} and a "
        "token are in the job's environment, that this address can be reached, and what `ncclwatch doctor` says",
    )


def _silent(state: JobState) -> Iterator[Check]:
    silent = [node for node in state.nodes if node.host and not node.reports]
    for node in silent[:SHOWN_MAX]:
        if state.job.outcome:
            return
        yield failed(
            "silent",
            f"{node.host} ({ranks_words(node.ranks)}) was heard {seconds_words(node.quiet_s)} ago for the last time",
            "see whether the host is up and can reach the server; its agent writes agent.log beside its rings, in "
            f"/dev/shm/ncclwatch-UID or below {config.ENV_RUNTIME_DIR}",
        )


def _versions(state: JobState) -> Check:
    others = [node for node in state.nodes if node.version and node.version != state.server_version]
    if not others:
        known = state.server_version and any(node.version for node in state.nodes)
        return passed("versions", f"{state.server_version} everywhere" if known else "not known")
    said = ", ".join(f"{node.host} has {node.version}" for node in others[:SHOWN_MAX])
    return warned(
        "versions",
        f"the server has {state.server_version}, {said}{_more(others)}",
        f"install ncclwatch {state.server_version} there",
    )


def _clocks(state: JobState) -> Check:
    off = [node for node in state.nodes if abs(node.clock_ahead_s or 0.0) > CLOCK_S_MAX]
    if not off:
        known = any(node.clock_ahead_s is not None for node in state.nodes)
        return passed("clocks", "agree with the server's within a few seconds" if known else "not known")
    said = ", ".join(
        f"{node.host} is {seconds_words(abs(node.clock_ahead_s or 0.0))} "
        f"{'ahead' if (node.clock_ahead_s or 0.0) > 0 else 'behind'}"
        for node in off[:SHOWN_MAX]
    )
    return warned(
        "clocks",
        f"{said}{_more(off)}: logs do not line up, and torchrun takes nodes that are 15 s apart for dead",
        "let chrony or systemd-timesyncd set them (`timedatectl`)",
    )


def _stacks(state: JobState) -> Check:
    if state.untried:
        wanted = f"ask with a token that may, in {config.ENV_OPERATOR_TOKEN} or {config.ENV_TOKEN}"
        return warned("stacks", f"not tried: {state.untried}", wanted)
    refused = [node for node in state.nodes if node.stacks not in ("", "yes")]
    if refused:
        said = "; ".join(f"{node.host}: {node.stacks}" for node in refused[:SHOWN_MAX])
        return warned("stacks", f"{said}{_more(refused)}", "run `ncclwatch doctor` there: it says what to allow")
    seen = sum(node.stacks == "yes" for node in state.nodes)
    if not seen:
        return passed("stacks", "not tried: no agent is connected")
    return passed("stacks", f"could be taken of one rank on {seen} node{'' if seen == 1 else 's'}")


def _more(found: Sequence[object]) -> str:
    return f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""


def rows(nodes: Sequence[NodeLine]) -> tuple[list[tuple[str, ...]], int]:
    """Return the rows of a table of nodes, those that lack something first, and how many found no room."""
    lacking = sorted(nodes, key=lambda node: (node.reports and node.stacks in ("", "yes"), node.ranks))
    return [cells(node) for node in lacking[:ROWS_MAX]], max(0, len(nodes) - ROWS_MAX)


def cells(node: NodeLine) -> tuple[str, ...]:
    """Return the cells of a node's row: host, ranks, whether it reports, version, clock, stacks."""
    reports = "yes" if node.reports else f"silent for {seconds_words(node.quiet_s)}" if node.host else "no agent"
    clock = "" if node.clock_ahead_s is None else f"{node.clock_ahead_s:+.1f} s"
    stacks = node.stacks if node.stacks in ("", "yes") else "no"
    return (node.host or "?", rank_list(node.ranks), reports, node.version, clock, stacks)
