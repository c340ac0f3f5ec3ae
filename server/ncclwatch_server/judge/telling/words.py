"""Says in words where ranks stand and what they wait in."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from ncclwatch.contract.model.rank import CallSite, GroupView, OpView, RankView, WaitKind, WaitView
from ncclwatch.contract.words.text import WAIT_WORDS, rank_list, ranks_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.histories.exceptions import Handled
from ncclwatch_server.judge.theory.histories.lines.rank_tests import leads_past
from ncclwatch_server.judge.theory.waits.group_identity import name_of
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Operation
from ncclwatch_server.judge.theory.waits.wait_graph import waited_for

PHRASES_MAX = 3  # places of waiting ranks that a sentence names


def at(site: CallSite | None) -> str:
    """Return " at file:line in function()", or nothing."""
    return f" at {site}" if site is not None else ""


def at_line(site: CallSite | None) -> str:
    """Return " at file:line", or nothing. For headlines."""
    return f" at {site.place}" if site is not None else ""


def lies_words(test: str) -> str:
    """Return where a call lies that a test of the rank keeps from some: "under `if rank == 0`"."""
    return f"{'after' if leads_past(test) else 'under'} `{test}`"


def wait_words(wait: WaitView) -> str:
    """Return what a wait is in, in the user's words."""
    if wait.kind in (WaitKind.SEND, WaitKind.RECV):
        other = f" {'to' if wait.kind is WaitKind.SEND else 'from'} rank {wait.peer}" if wait.peer >= 0 else ""
        return f"{wait.kind.value}{other}"
    if wait.kind is WaitKind.LOCK:
        return f"an attempt to lock {wait.label or 'a file'}"
    if wait.kind is WaitKind.STORE and wait.label:
        return f"a lookup of the key {wait.label} on the rendezvous store"
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


def waiting_words(
    case: Case, blocks: Iterable[Block], awaited: Collection[int] = (), first: Collection[int] = ()
) -> str:
    """Return "ranks 0-2 wait in all_reduce at train.py:44", one phrase for each place.

    `awaited`: ranks that the sentence has named; "wait for it" or "for them" where a wait is for one of these.
    Places of ranks in `first` come first, then those of the most ranks.
    """
    places: dict[tuple[str, str, bool], list[int]] = {}
    known: dict[Operation, bool] = {}  # an operation may have 100,000 members that all wait in it
    for block in blocks:
        operation = block.operation
        if operation not in known:
            for_whom = (*waited_for(case.graph, block), *case.graph.unseen[operation])
            # Which rank should have set a key is not recorded.
            known[operation] = operation.kind is not WaitKind.STORE and not set(awaited).isdisjoint(for_whom)
        place = (wait_words(block.wait), at_line(block.wait.site), known[operation])
        places.setdefault(place, []).append(block.rank)
    phrases = []
    for (what, where, direct), ranks in sorted(
        places.items(), key=lambda item: (set(item[1]).isdisjoint(first), -len(item[1]))
    ):
        whom = f" for {them(awaited)}" if direct else ""
        phrases.append(f"{ranks_words(ranks)} {wait_verb(ranks)}{whom} in {what}{where}")
    most = PHRASES_MAX - 1 if awaited else PHRASES_MAX
    if len(phrases) > most:
        phrases = [*phrases[:most], "other ranks wait elsewhere"]
    return "; ".join(phrases)


def either_words(sides: Sequence[Collection[int]]) -> str:
    """Return "rank 0, rank 1 or ranks 2-3 are the cause"."""
    *most, last = map(ranks_words, sides)
    verb = "are" if any(len(side) > 1 for side in sides) else "is"
    return f"{', '.join(most)} or {last} {verb} the cause"


def wait_verb(ranks: Collection[int]) -> str:
    """Return the verb for one rank, or for several."""
    return "waits" if len(set(ranks)) == 1 else "wait"


def them(ranks: Collection[int]) -> str:
    """Return the pronoun for one rank, or for several."""
    return "it" if len(set(ranks)) == 1 else "them"


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


def counts_words(counts: Mapping[int, int]) -> str:
    """Return "ranks 0-2: 25, rank 3: 24"."""
    by_count: dict[int, list[int]] = {}
    for rank, count in counts.items():
        by_count.setdefault(count, []).append(rank)
    return ", ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}: {count}"
        for count, ranks in sorted(by_count.items(), reverse=True)
    )


def handled_words(handled: Handled) -> str:
    """Return what an exception has to do with a wait."""
    return (
        f"Rank {handled.rank} entered this wait while handling {handled.text}{at(handled.site)}; the other ranks do "
        "not know of it."
    )


def operation_words(views: Mapping[int, RankView], block: Block) -> str:
    """Return "all_reduce #7 of group tp", or "send from rank 0 to rank 1"."""
    operation = block.operation
    if operation.source >= 0:
        return f"{block.wait.op.value} from rank {operation.source} to rank {operation.target}"
    return f"{wait_words(block.wait)} #{operation.seq} of {group_words(views, operation.group)}"
