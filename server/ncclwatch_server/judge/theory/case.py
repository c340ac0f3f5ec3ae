"""What every stage of the judge looks at, and how its findings become a verdict."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import CallSite, GroupView, OpView, RankView, ThreadView, WaitKind, WaitView
from ncclwatch.contract.model.verdict import Culprit, Evidence
from ncclwatch.contract.words.text import WAIT_WORDS, rank_list, ranks_words, seconds_words
from ncclwatch_server.judge.theory.histories.call_sites import frames_of, note_at
from ncclwatch_server.judge.theory.moments import without_older_files
from ncclwatch_server.judge.theory.waits.full_tables import legible
from ncclwatch_server.judge.theory.waits.group_identity import name_of, told_apart
from ncclwatch_server.judge.theory.waits.memberships import possible, with_members
from ncclwatch_server.judge.theory.waits.rank_standing import Block, RankStanding, blocked_ranks, standings
from ncclwatch_server.judge.theory.waits.wait_graph import WaitGraph, build, victims_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One snapshot with its standings and its wait-for graph."""

    snapshot: JobSnapshot
    found: Mapping[int, RankStanding]
    graph: WaitGraph
    told: frozenset[int] = frozenset()  # ranks of the roots that were told already
    explained: frozenset[int] = frozenset()  # those of them that wait, and all whose waits lead to one of them

    @property
    def views(self) -> Mapping[int, RankView]:
        """The ranks somebody has seen."""
        return self.snapshot.ranks

    @property
    def blocked(self) -> tuple[int, ...]:
        """The ranks that wait for others."""
        return blocked_ranks(self.found)

    @property
    def unexplained(self) -> tuple[int, ...]:
        """The ranks that wait for others, and for no root that was told already."""
        return tuple(rank for rank in self.blocked if rank not in self.explained)

    def beside(self, ranks: Iterable[int]) -> "Case":
        """Return what is left to explain beside a root of these ranks, victims of it or not."""
        root = frozenset(ranks)
        held_up = frozenset(victims_of(self.graph, root)) | root.intersection(self.graph.blocks)
        return replace(self, told=self.told | root, explained=self.explained | held_up)


def open_case(snapshot: JobSnapshot) -> Case:
    """Return the case of a snapshot, with the members of all groups as far as they are known.

    Groups of one name and other members have names of their own in it.
    """
    views = {rank: legible(view) for rank, view in possible(snapshot.ranks, snapshot.world_size).items()}
    complete = with_members(views, snapshot.world_size, partly=True)
    snapshot = replace(snapshot, ranks=told_apart(without_older_files(complete)))
    found = standings(snapshot)
    return Case(snapshot=snapshot, found=found, graph=build(found, snapshot.silent, snapshot.unasked))


def culprit(view: RankView, site: CallSite | None, doing: str) -> Culprit:
    """Return a culprit with what is known of its place."""
    return Culprit(rank=view.rank, host=view.host, pid=view.pid, device=view.device, call_site=site, doing=doing)


def at(site: CallSite | None) -> str:
    """Return " at file:line in function()", or nothing."""
    return f" at {site}" if site is not None else ""


def wait_words(wait: WaitView) -> str:
    """Return what a wait is in, in the user's words."""
    if wait.kind in (WaitKind.SEND, WaitKind.RECV):
        other = f" {'to' if wait.kind is WaitKind.SEND else 'from'} rank {wait.peer}" if wait.peer >= 0 else ""
        return f"{wait.kind.value}{other}"
    if wait.kind is WaitKind.LOCK:
        return f"flock on {wait.label or 'a file'}"
    words = WAIT_WORDS.get(wait.kind) or wait.op.value
    return f"{words} of {wait.label}" if wait.label else words


def op_words(op: OpView) -> str:
    """Return an operation with its size, as the ring has it."""
    size = f" of {op.numel} x {op.dtype}" if op.numel else ""
    root = f" root {op.peer}" if op.peer >= 0 and not op.op.is_p2p else ""
    return f"{op.op.value}{size}{root}"


def group_words(views: Mapping[int, RankView], name: str) -> str:
    """Return how a group is called: its description where the user gave one, else by its name and members."""
    for view in views.values():
        for group in view.groups:
            if group.name == name:
                return _group_words(group, len(group.ranks) == view.world_size)
    return f"group {name}"


def _group_words(group: GroupView, of_all: bool) -> str:
    if group.desc == "default_pg" or (not group.desc and of_all):
        return "the default group"
    if group.desc not in ("", "undefined"):
        return f"group {group.desc}"
    more = f" and {group.unnamed} more" if group.unnamed else ""
    return f"group {name_of(group.name)} ({'all ranks' if of_all else ranks_words(group.ranks) + more})"


def operation_words(views: Mapping[int, RankView], block: Block) -> str:
    """Return "all_reduce #7 of group tp", or "send from rank 0 to rank 1"."""
    operation = block.operation
    if operation.source >= 0:
        return f"{block.wait.op.value} from rank {operation.source} to rank {operation.target}"
    return f"{wait_words(block.wait)} #{operation.seq} of {group_words(views, operation.group)}"


def onset_s(blocks: Iterable[Block]) -> float:
    """Return for how long the hang has lasted: since the last of its ranks came to wait."""
    ages = [block.wait.age_s for block in blocks]
    return min(ages, default=0.0)


def block_evidence(block: Block) -> Evidence:
    """Return what a blocked rank's ring says."""
    where = f" #{block.wait.seq} of group {name_of(block.wait.group)}" if block.wait.group else ""
    fact = f"in {wait_words(block.wait)}{where}{at(block.wait.site)} for {seconds_words(block.wait.age_s)}"
    return Evidence(source="ring", rank=block.rank, fact=fact)


def source_evidence(view: RankView, site: CallSite | None) -> list[Evidence]:
    """Return the source lines that lead to a site and what tests of the rank enclose them."""
    facts = []
    for frame in frames_of(view, site)[:3]:
        note = note_at(view, frame)
        if note is not None and note.text:
            under = f" (under `{note.condition}`)" if note.condition else ""
            facts.append(Evidence(source="source", rank=view.rank, fact=f"{frame}: {note.text}{under}"))
    return facts


def main_thread(view: RankView) -> ThreadView | None:
    """Return a rank's main thread, if anybody saw it."""
    return next((thread for thread in view.threads if thread.main), None)


def waiting_words(views: Mapping[int, RankView], blocks: Iterable[Block]) -> str:
    """Return "ranks 0-2 wait in all_reduce at train.py:44 in step()", one phrase for each place."""
    places: dict[tuple[str, str], list[int]] = {}
    for block in blocks:
        places.setdefault((wait_words(block.wait), at(block.wait.site)), []).append(block.rank)
    phrases = []
    for (what, where), ranks in sorted(places.items(), key=lambda item: -len(item[1])):
        verb = "waits" if len(set(ranks)) == 1 else "wait"
        phrases.append(f"{ranks_words(ranks)} {verb} in {what}{where}")
    if len(phrases) > 3:
        phrases = [*phrases[:3], "others elsewhere"]
    return "; ".join(phrases)


def hosts_words(case: Case, ranks: Iterable[int]) -> str:
    """Return where the hosts stand whose devices wait: "ranks 0-1 at train.py:88 in step(), calling item"."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        for block in case.found[rank].blocks if rank in case.found else ():
            thread = block.thread
            if block.on_device and thread.doing not in (None, block.wait.site):
                calling = f", calling {thread.calling}" if thread.calling else ""
                places.setdefault(f"at {thread.doing}{calling}", []).append(rank)
    return "; ".join(f"{ranks_words(sorted(set(found)))} {where}" for where, found in sorted(places.items())[:4])


def explained(case: Case, ranks: Iterable[int]) -> tuple[int, int]:
    """Return (blocked ranks among `ranks`, blocked ranks in all)."""
    blocked = set(case.blocked)
    return len(blocked & set(ranks)), len(blocked)


def counts_words(counts: Mapping[int, int]) -> str:
    """Return "ranks 0-2: 25, rank 3: 24"."""
    by_count: dict[int, list[int]] = {}
    for rank, count in counts.items():
        by_count.setdefault(count, []).append(rank)
    return ", ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}: {count}"
        for count, ranks in sorted(by_count.items(), reverse=True)
    )
