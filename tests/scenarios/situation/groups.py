"""Reads what a situation says of the job itself, of its process groups and of ranks that nobody sees."""

import dataclasses
from collections.abc import Mapping

from ncclwatch.contract.model.rank import OpView, ProcessState, ProcessView, RankView, ThreadView
from tests.scenarios.situation.state import Command, State
from tests.scenarios.situation.words import options_of, ranks_of, site_of


def world(state: State, words: list[str]) -> None:
    state.world = int(words[0])
    hosts = int(options_of(words[1:]).get("hosts", "1"))
    per_host = state.world // hosts
    for rank in range(state.world):
        state.ranks[rank] = RankView(
            rank=rank, local_rank=rank % per_host, host=f"node{rank // per_host}", pid=1000 + rank, device="",
            world_size=state.world, local_world_size=per_host, attempt=0,
            process=ProcessView(state=ProcessState.SLEEPING), pulse_age_s=0.2, initialised=True,
            threads=(ThreadView(tid=1000 + rank, main=True, issued=10),),
        )  # fmt: skip


def unseen(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        del state.ranks[rank]


def unasked(state: State, words: list[str]) -> None:
    unseen(state, words)
    state.unasked |= set(ranks_of(words[0]))


def unattached(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.change(rank, attached=False, initialised=False)


def uninitialised(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.change(rank, initialised=False)


def group(state: State, words: list[str]) -> None:
    """group NAME RANKS [as DESCRIPTION]: these ranks are in a group of that name, which is its description as well."""
    state.descs |= dict(zip(words[:1], words[3:], strict=False))
    state.groups[words[0]] = ranks_of(words[1])
    for rank in state.groups[words[0]]:
        state.put_group(rank, words[0], 0, None)


def knows(state: State, words: list[str]) -> None:
    """knows RANKS N: how many groups torch knew there when a thread came to new_group."""
    for rank in ranks_of(words[0]):
        state.change(rank, groups_held=int(words[1]))


def counts(state: State, words: list[str]) -> None:
    """counts RANKS N: how many groups torch had counted there after the last one."""
    for rank in ranks_of(words[0]):
        state.change(rank, groups_counted=int(words[1]))


def free_threads(state: State, words: list[str]) -> None:
    """free_threads RANKS N: threads that have issued nothing so far, and may."""
    for rank in ranks_of(words[0]):
        state.change(rank, free_threads=int(words[1]))


def made(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        groups = tuple(
            dataclasses.replace(group, site=site_of(words[2])) if group.name == words[1] else group
            for group in state.ranks[rank].groups
        )
        state.change(rank, groups=groups)


def named(state: State, words: list[str]) -> None:
    """named RANKS GROUP NAME: at the end: these ranks know the group by another name."""
    ranks, old, new = words
    for rank in ranks_of(ranks):
        view = state.ranks[rank]
        groups = (
            dataclasses.replace(
                group,
                name=new if group.name == old else group.name,
                desc="undefined" if group.name == old else group.desc,
                pending=_of(group.pending, old, new),
            )
            for group in view.groups
        )
        waits = (
            dataclasses.replace(thread, wait=dataclasses.replace(thread.wait, group=new))
            if thread.wait is not None and thread.wait.group == old
            else thread
            for thread in view.threads
        )
        history = tuple(_of(op, old, new) or op for op in view.history)
        state.change(rank, groups=tuple(groups), threads=tuple(waits), history=history)


def _of(op: OpView | None, old: str, new: str) -> OpView | None:
    return dataclasses.replace(op, group=new) if op is not None and op.group == old else op


def lost(state: State, words: list[str]) -> None:
    size = int(options_of(words[1:]).get("size", "0"))
    for rank, view in list(state.ranks.items()):
        lost = (
            dataclasses.replace(g, ranks=(), size=size, members_digest=int(size > 0)) if g.name == words[0] else g
            for g in view.groups
        )
        state.change(rank, groups=tuple(lost))


def unused(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.change(rank, groups=tuple(g for g in state.ranks[rank].groups if g.name != words[1]))


def destroyed(state: State, words: list[str]) -> None:
    """destroyed RANKS GROUP: these ranks have destroyed the group."""
    for rank in ranks_of(words[0]):
        groups = tuple(
            dataclasses.replace(group, destroyed=True, pending=None) if group.name == words[1] else group
            for group in state.ranks[rank].groups
        )
        state.change(rank, groups=groups)


def hash(state: State, words: list[str]) -> None:
    """hash RANKS GROUP N [late]: the hash over all that these ranks issued in a group."""
    for rank in ranks_of(words[0]):
        groups = tuple(
            dataclasses.replace(group, prefix_hash=int(words[2]), late="late" in words)
            if group.name == words[1]
            else group
            for group in state.ranks[rank].groups
        )
        state.change(rank, groups=groups)


def limit(state: State, words: list[str]) -> None:
    for rank, view in list(state.ranks.items()):
        groups = (dataclasses.replace(g, timeout_s=float(words[1])) if g.name == words[0] else g for g in view.groups)
        state.change(rank, groups=tuple(groups))


def timeout(state: State, words: list[str]) -> None:
    for rank in state.ranks:
        state.change(rank, timeout_s=float(words[0]))


def steps(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.change(rank, steps=int(words[1]))


def known(state: State, words: list[str]) -> None:
    state.known_s = float(words[0])


def unheard(state: State, words: list[str]) -> None:
    state.limits["unheard"] = state.limits["alone"] = words[0]


def alone(state: State, words: list[str]) -> None:
    state.limits["alone"] = words[0]


def unfiled(state: State, words: list[str]) -> None:
    state.limits["unfiled"] = words[0]


def live(state: State, words: list[str]) -> None:
    state.live = True


COMMANDS: Mapping[str, Command] = {
    "world": world,
    "unseen": unseen,
    "unasked": unasked,
    "unattached": unattached,
    "uninitialised": uninitialised,
    "group": group,
    "made": made,
    "knows": knows,
    "counts": counts,
    "free_threads": free_threads,
    "named": named,
    "lost": lost,
    "unused": unused,
    "destroyed": destroyed,
    "hash": hash,
    "limit": limit,
    "timeout": timeout,
    "steps": steps,
    "known": known,
    "unheard": unheard,
    "alone": alone,
    "unfiled": unfiled,
    "live": live,
}
