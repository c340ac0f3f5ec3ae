"""Reads what ranks have issued and what they wait in: collectives, devices, p2p, the setup of groups."""

import dataclasses
from collections.abc import Mapping

from ncclwatch.contract.model.rank import CallSite, Op, OpView, PeerView, ProcessState, ThreadView, WaitKind, WaitView
from tests.scenarios.situation.state import Command, State
from tests.scenarios.situation.words import module_of, options_of, ranks_of, site_of


def _issue(state: State, rank: int, target: str, op: Op, site: CallSite, found: dict[str, str]) -> OpView:
    group, _, seq = target.partition("#")
    last = [o for o in state.ranks[rank].history if o.group == group]
    issued = OpView(
        group=group, seq=int(seq), op=op, site=site, age_s=float(found.get("for", "0")),
        numel=int(found.get("numel", "100")), dtype=found.get("dtype", "float32"),
        peer=int(found.get("root", "-1")),
        reduce_op=found.get("reduce", ""), batch=int(found.get("batch", str(last[-1].batch if last else 0))),
        forwards=int(found.get("forward", str(last[-1].forwards if last else 0))),
        loader=1 if state.ranks[rank].loaders else 0, thread=int(found.get("thread", "1")) * 1000 + rank,
        label=found.get("label", ""), in_order="sync" in found, route=_route(state, rank, site, found),
        module=_module(state, rank, found),
    )  # fmt: skip
    if op is Op.BARRIER:
        issued = dataclasses.replace(issued, numel=0, dtype="")
    state.change(rank, history=(*state.ranks[rank].history, issued))
    state.put_group(rank, group, int(seq), issued)
    return issued


def _route(state: State, rank: int, site: CallSite, found: dict[str, str]) -> int:
    """Return the number of the way to a site, by the lines that called it."""
    if "from" not in found:
        return 0
    way = (site, *(site_of(caller) for caller in found["from"].split("+")))
    routes = state.ranks[rank].routes
    if way not in routes:
        routes = (*routes, way)
        state.change(rank, routes=routes)
    return routes.index(way) + 1


def _module(state: State, rank: int, found: dict[str, str]) -> int:
    """Return the number of the module in whose forward an operation is made."""
    if "module" not in found:
        return 0
    module = module_of(found["module"])
    modules = state.ranks[rank].modules
    if module not in modules:
        modules = (*modules, module)
        state.change(rank, modules=modules)
    return modules.index(module) + 1


def _p2p(state: State, words: list[str], kind: WaitKind) -> None:
    name, target, site, *rest = words
    rank, found = int(name), options_of(rest)
    peer, _, count = target.partition("#")
    op = Op.SEND if kind is WaitKind.SEND else Op.RECV
    group = next(iter(state.groups))
    issued_so_far, through = int(count), int(count) - 1
    counts = (
        {"sends": issued_so_far, "sends_completed": through}
        if op is Op.SEND
        else {"recvs": issued_so_far, "recvs_completed": int(found.get("through", through))}
    )
    age_s = float(found["for"])
    issued = OpView(group=group, seq=int(count), op=op, peer=int(peer), site=site_of(site), age_s=age_s)
    state.change(rank, peers=(*state.ranks[rank].peers, PeerView(group=group, peer=int(peer), **counts)))
    state.change(rank, history=(*state.ranks[rank].history, issued))
    state.block(
        rank,
        WaitView(kind=kind, age_s=age_s, group=group, seq=int(count), op=op, peer=int(peer),
                 site=issued.site),
    )  # fmt: skip


def in_(state: State, words: list[str]) -> None:
    names, target, op, site, *rest = words
    found = options_of(rest)
    for rank in ranks_of(names):
        issued = _issue(state, rank, target, Op(op), site_of(site), found)
        wait = WaitView(
            kind=WaitKind.COLLECTIVE, age_s=float(found["for"]), group=issued.group, seq=issued.seq, op=issued.op,
            peer=issued.peer, site=issued.site,
        )  # fmt: skip
        second = any(each.tid == issued.thread and each.name and not each.main for each in state.ranks[rank].threads)
        (state.block_second if second else state.block)(rank, wait)


def begun(state: State, words: list[str]) -> None:
    """begun RANKS GROUP#SEQ OP SITE for S [KEY=VALUE...]: issued asynchronously so long ago, and not finished."""
    names, target, op, site, *rest = words
    for rank in ranks_of(names):
        _issue(state, rank, target, Op(op), site_of(site), options_of(rest))


def device(state: State, words: list[str]) -> None:
    names, target, op, site, *rest = words
    name = target.partition("#")[0]
    if "root" in options_of(rest) and Op(op).is_p2p:
        for rank in ranks_of(names):
            _message_on_device(state, rank, target, Op(op), site_of(site), options_of(rest))
        return
    for rank in ranks_of(names):
        before = next(group for group in state.ranks[rank].groups if group.name == name)
        _issue(state, rank, target, Op(op), site_of(site), options_of(rest))
        *others, after = state.ranks[rank].groups
        oldest = before if before.pending is not None else after
        blind = "blind" in options_of(rest)
        group = dataclasses.replace(
            after, asynchronous=True, blind=blind, completed=oldest.completed,
            pending=None if blind else oldest.pending,
        )  # fmt: skip
        state.change(rank, groups=(*others, group))


def _message_on_device(state: State, rank: int, target: str, op: Op, site: CallSite, found: dict[str, str]) -> None:
    name, _, count = target.partition("#")
    issued = OpView(
        group=name, seq=int(count), op=op, peer=int(found["root"]), site=site, age_s=float(found["for"]),
        thread=1000 + rank, in_order="sync" in found,
    )  # fmt: skip
    view, key = state.ranks[rank], (name, issued.peer)
    before = next((each for each in view.peers if (each.group, each.peer) == key), PeerView(group=name, peer=key[1]))
    said, doing = ("sends", "sending") if op is Op.SEND else ("recvs", "receiving")
    counted = dataclasses.replace(before, **{said: issued.seq})
    groups = view.groups
    if "told" in found or "behind" in found:
        before_it = int(found.get("through", issued.seq - 1))
        told = {"told": True} | ({doing: issued} if "told" in found else {})
        counted = dataclasses.replace(counted, **{f"{said}_completed": before_it}, **told)
        groups = tuple(dataclasses.replace(e, asynchronous=True) if e.name == name else e for e in groups)
    else:
        groups = tuple(
            dataclasses.replace(each, asynchronous=True, blind=True, completed=0, pending=None)
            if each.name == name
            else each
            for each in groups
        )
    others = tuple(each for each in view.peers if each is not before)
    state.change(rank, peers=(*others, counted), history=(*view.history, issued), groups=groups)


def backward(state: State, words: list[str]) -> None:
    names, target, site, *rest = words
    found = options_of(rest)
    for rank in ranks_of(names):
        issued = _issue(state, rank, target, Op.ALL_REDUCE, site_of(site), found)
        wait = WaitView(kind=WaitKind.BACKWARD, age_s=float(found["for"]) + 0.1, site=issued.site)
        state.block(rank, wait)
        cpu_s = float(found.get("cpu", found["for"]))
        state.main(rank, leaf="_engine_run_backward graph.py:900", cpu_still_s=cpu_s)


def send(state: State, words: list[str]) -> None:
    _p2p(state, words, WaitKind.SEND)


def recv(state: State, words: list[str]) -> None:
    _p2p(state, words, WaitKind.RECV)


def posted(state: State, words: list[str]) -> None:
    """posted RANK PEER sends N recvs N: p2p operations that are through."""
    rank, peer, found = int(words[0]), int(words[1]), options_of(words[2:])
    counts = {key: int(value) for key, value in found.items()}
    counts |= {f"{key}_completed": value for key, value in counts.items() if key in ("sends", "recvs")}
    group = next(iter(state.groups))
    state.change(rank, peers=(*state.ranks[rank].peers, PeerView(group=group, peer=peer, **counts)))


def history(state: State, words: list[str]) -> None:
    names, target, op, site, *rest = words
    group, _, span = target.partition("#")
    first, _, last = span.partition("-")
    found = options_of(rest)
    for rank in ranks_of(names):
        done = [
            OpView(
                group=group, seq=seq, op=Op(op), site=site_of(site), completed=True, peer=int(found.get("root", "-1")),
                numel=0 if op == "barrier" else int(found.get("numel", "100")),
                dtype="" if op == "barrier" else found.get("dtype", "float32"), reduce_op=found.get("reduce", ""),
                batch=int(found["batch"]) + n if "batch" in found else 0, loader=1 if "batch" in found else 0,
                forwards=int(found["forward"]) + n if "forward" in found else 0,
                thread=int(found.get("thread", "1")) * 1000 + rank,
                age_s=float(found.get("ago", "60")), in_order="sync" in found,
                route=_route(state, rank, site_of(site), found), module=_module(state, rank, found),
                label=found.get("label", ""),
            )
            for n, seq in enumerate(range(int(first), int(last or first) + 1))
        ]  # fmt: skip
        state.change(rank, history=(*state.ranks[rank].history, *done))
        state.put_group(rank, group, int(last or first), None)


def init(state: State, words: list[str]) -> None:
    """init RANKS SITE for S [of N]: in init_process_group, for so many ranks as they said."""
    found = options_of(words[2:])
    age_s, size = float(found["for"]), int(found.get("of", "0"))
    for rank in ranks_of(words[0]):
        state.change(rank, initialised=False)
        state.block(rank, WaitView(kind=WaitKind.INIT, age_s=age_s, seq=size, site=site_of(words[1])))


def making(state: State, words: list[str]) -> None:
    """making RANKS SITE for S [number N] [of RANKS] [alone RANKS]: in new_group, of the group with that number.

    0: not all ranks make it, but these alone. `of`: who will be in it.
    """
    found = options_of(words[2:])
    alone = tuple(ranks_of(found["alone"])) if "alone" in found else ()
    members = tuple(ranks_of(found["of"])) if "of" in found else alone
    seq = int(found.get("number", "0" if alone else "1"))
    age_s, site = float(found["for"]), site_of(words[1])
    for rank in ranks_of(words[0]):
        state.block(rank, WaitView(kind=WaitKind.NEW_GROUP, age_s=age_s, seq=seq, site=site, members=members))


def key(state: State, words: list[str]) -> None:
    """key RANKS SITE for S [name NAME]: waits for a key of the store."""
    found = options_of(words[2:])
    wait = WaitView(kind=WaitKind.STORE, age_s=float(found["for"]), site=site_of(words[1]), label=found.get("name", ""))
    for rank in ranks_of(words[0]):
        state.block(rank, wait)


def keys(state: State, words: list[str]) -> None:
    """keys RANKS NAME...: what keys they have set."""
    for rank in ranks_of(words[0]):
        state.change(rank, keys_set=tuple(words[1:]))


def modes(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.change(rank, modes=tuple(module_of(word) for word in words[1:]))


def engine(state: State, words: list[str]) -> None:
    """engine RANKS [spins]: a thread of the autograd engine that has issued buckets and has no Python frame now."""
    for rank in ranks_of(words[0]):
        thread = ThreadView(tid=3000 + rank, main=False, issued=9, cpu_still_s=0.0 if "spins" in words else 9.0)
        state.change(rank, threads=(*state.ranks[rank].threads, thread))


def through(state: State, words: list[str]) -> None:
    """through RANKS GROUP#SEQ: the collective is over, and they are at work."""
    name, _, seq = words[1].partition("#")
    for rank in ranks_of(words[0]):
        history = (
            dataclasses.replace(op, completed=True) if (op.group, op.seq) == (name, int(seq)) else op
            for op in state.ranks[rank].history
        )
        on_device = any(group.name == name and group.asynchronous for group in state.ranks[rank].groups)
        state.change(rank, history=tuple(history))
        state.put_group(rank, name, int(seq), None)
        groups = state.ranks[rank].groups
        state.change(
            rank,
            groups=tuple(
                dataclasses.replace(group, asynchronous=on_device) if group.name == name else group for group in groups
            ),
        )
        goes_on(state, [str(rank)])


def goes_on(state: State, words: list[str]) -> None:
    """goes_on RANKS: they are at work again, outside of everything."""
    for rank in ranks_of(words[0]):
        state.main(rank, wait=None, doing=None, frames=(), leaf="", same_s=0.0, cpu_still_s=0.0)
        state.process(rank, state=ProcessState.SLEEPING, cpu_still_s=0.0, io_still_s=0.0)
        state.change(rank, pulse_age_s=0.2)


COMMANDS: Mapping[str, Command] = {
    "through": through,
    "goes_on": goes_on,
    "in": in_,
    "begun": begun,
    "device": device,
    "backward": backward,
    "send": send,
    "recv": recv,
    "posted": posted,
    "history": history,
    "init": init,
    "making": making,
    "key": key,
    "keys": keys,
    "modes": modes,
    "engine": engine,
}
