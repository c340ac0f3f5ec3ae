"""A tiny language for situations of a job, and how it becomes what the judge judges.

One command a line; ranks are written "0-2,5"; a site is "train.py:44" (in function step).

    world N [hosts 2]                          ranks that exist; all are alive, outside, and at work
    group NAME RANKS                           a process group
    lost GROUP [size N]                        at the end: nobody has the list of its members, or more than their number
    unused RANKS GROUP                         at the end: they have no record of it, for they have not used it yet
    in RANKS GROUP#SEQ OP SITE for S [KEY=VALUE...]   blocked in a collective (numel=, dtype=, root=, reduce=);
                                               from=SITE+SITE: the lines that called SITE's function, innermost first
                                               module=codec/quantize/Quantizer/train/no_grad: in whose forward
    modes RANKS codec/quantize/Quantizer/eval  the mode of a module now
    backward RANKS GROUP#SEQ SITE for S        in backward, a bucket of DDP unfinished
    device RANKS GROUP#SEQ OP SITE for S [sync] [blind]   issued on a device so long ago, and not finished
    host RANKS SITE for S [calling NAME] [in WAIT] [spins]   where the host stands that has run ahead of its device
    send|recv RANK PEER#N SITE for S [through=N]   blocked in p2p; receives that are through, if not all before it
    seen RANKS S [taken S]                     their views came so long ago, and were asked for so long before that
    init RANKS SITE for S                      in init_process_group
    making RANKS SITE for S                    in new_group
    key RANKS SITE for S                       waits for a key of the store
    at RANKS SITE [still S] [in data|save] [cpu S] [io S]   outside of everything
    stopped RANKS for S                        state T
    gil RANKS for S [busy] [cpu=S] [io=S]      no pulse for so long
    disk RANKS SITE for S                      state D
    ended RANKS exit CODE | signal N | error "Type: text" SITE   [ago S]
    unseen RANKS
    unasked RANKS                              an agent reports them; in a big job not all are asked for their views
    unattached RANKS                           seen from outside only
    handling RANKS "Type: text" [noted S]                inside an except block
    loader RANKS SITE pass N drawn N [exhausted] [last N]
    history RANKS GROUP#FIRST-LAST OP SITE [batch N] [forward N] [from=...]   completed operations, counters grow by one
    source RANKS SITE [if "TEST"] [other OP,...] [loop "HEAD" A-B] [escape "TEXT"] [return "TEXT"] [leaves "TEXT"]
    frames RANKS SITE SITE...                  the user's frames, innermost first
    endpoint RANKS HOST:PORT
    thread RANKS issued N [still S]            a second thread that has issued operations
    names RANKS MAIN SECOND                    an idle second thread, and what both are called; thread=2 issues from it
    destroyed RANKS GROUP                      these ranks have destroyed the group
    hash RANKS GROUP N [late]                  the hash over all that they issued in a group
    kernel RANKS PLACE                         where the main thread sits in the kernel
    refused RANKS                              the kernel does not tell of their I/O
    sampled RANKS same S [in FUNCTION]         their stack was seen, the same for so long; 0: it has just changed
    lock RANK HOLDER PATH SITE for S           waits for a file lock that a rank holds, or "pid" for a stranger
    habit PHASE OP SIZE longest S [waits N] [bound S] [still S] [under S]   what this job has done before in such a
                                               wait, and the timeout that it had then
    passed GROUP#SEQ PHASE...                  what the late ranks have done since that wait began
    phase RANKS NAME                           the user's mark
    work RANKS PHASE                           what a framework does on the stack of the main thread
    recorder RANKS GROUP#SEQ OP [done] [early N]   newest collective by torch's Flight Recorder; early: N operations ago
    launched RANKS N [by GROUP]                collectives by NCCL's RAS, of the group's communicator
    save RANKS CALL PATH SITE began S [ended S] [id NAME|-] [written N] [rate N] [still S] [error TEXT] [refused TEXT]
         [total N] [as_before] [lacks N] [free N] [appends] [unanswered S] [thread 2]
         a save of theirs; id: of the file, PATH if left out, "-" for none
    cuda RANKS UUID [index N] [chosen N] [used 1] [count N] [visible LIST] [by BACKEND] [may WHY] [sick TEXT]
    rng RANKS SAVED PRESENT SITE [own N]       restored so many states of devices to so many devices
    facts RANKS KEY=VALUE...                   what they say of how they were set up (backend=nccl, NCCL_ALGO=Ring)
    wrapped RANKS KIND MEMBERS [used] PARAMETER... [/ PARAMETER...]   models; "w float32 4x4", "/" between units
    sampler RANKS SITE PARTS [own|first|local|other] [samples=N] [length=N] [seed=N]   at the first pass of a loop
    says RANKS N                               they say that the job has N ranks
    twice RANKS HOST...                        ranks that exist twice
    clock HOST S                               by how much its clock is ahead of the server's
    timeout S                                  of the default group
    limit GROUP S                              of one group
    steps RANKS N                              optimizer steps made
    known S                                    for how long the server has known the job
"""

import dataclasses
import json
import shlex
from collections.abc import Callable

from ncclwatch.contract.devices import DeviceView
from ncclwatch.contract.model import (
    CallSite,
    Ending,
    GradMode,
    GroupView,
    Habit,
    JobSnapshot,
    LoaderView,
    ModuleView,
    Op,
    OpView,
    PeerView,
    ProcessState,
    ProcessView,
    RankView,
    RngRestore,
    SaveView,
    SourceNote,
    ThreadView,
    WaitClass,
    WaitKind,
    WaitView,
)
from ncclwatch.contract.phases import Phase
from ncclwatch.contract.preflight import (
    LikeRanks,
    ModelFacts,
    RankFacts,
    SamplerFacts,
    Setup,
    bounded,
    parse,
    parse_parameters,
)
from ncclwatch.contract.testimony import CommRank, Communicator, Testimony, WitnessedGroup, WitnessedOp
from ncclwatch.rank.preflight import Chain


def ranks_of(text: str) -> list[int]:
    """Parse "0-2,5"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def site_of(text: str) -> CallSite:
    """Parse "train.py:44" or "train.py:44:step"."""
    file, line, *function = text.split(":")
    return CallSite(file=f"/home/user/{file}", line=int(line), function=function[0] if function else "step")


def module_of(text: str) -> ModuleView:
    """Parse "codec/quantize/Quantizer/train/no_grad"."""
    root, path, kind, mode, *grad = text.split("/")
    return ModuleView(root=root, path=path, kind=kind, training=mode == "train", grad=GradMode(grad[0] if grad else ""))


def options_of(words: list[str]) -> dict[str, str]:
    """Parse "for 3 numel=4 exhausted"."""
    found: dict[str, str] = {}
    words = list(words)
    while words:
        word = words.pop(0)
        if "=" in word and not word.startswith("if"):
            key, _, value = word.partition("=")
            found[key] = value
        elif word in ("exhausted", "busy", "spins", "sync", "blind", "appends", "as_before"):
            found[word] = "1"
        else:
            found[word] = words.pop(0)
    return found


class Situation:
    """The state that commands build up."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankView] = {}
        self.world = 0
        self.groups: dict[str, list[int]] = {}
        self.habits: dict[WaitClass, Habit] = {}
        self.under_way: dict[tuple[str, int], tuple[WaitClass, ...]] = {}
        self.testimonies: dict[int, Testimony] = {}
        self.launched: dict[str, dict[int, int]] = {}
        self.known_s = 3600.0
        self.unasked: set[int] = set()
        self.facts: dict[int, dict[str, str]] = {}
        self.samplers: dict[int, tuple[SamplerFacts, ...]] = {}
        self.models: dict[int, tuple[ModelFacts, ...]] = {}
        self.parameters: dict[tuple[str, str], dict[int, tuple[str, ...]]] = {}
        self.worlds: dict[int, list[int]] = {}
        self.twice: dict[int, tuple[str, ...]] = {}
        self.clocks_s: dict[str, float] = {}

    def run(self, line: str) -> None:
        """Carry out one command."""
        verb, *words = shlex.split(line)
        command: Callable[[list[str]], None] = getattr(self, f"do_{verb}")
        command(words)

    def snapshot(self) -> JobSnapshot:
        """Return what the judge gets."""
        return JobSnapshot(
            job="job",
            world_size=self.world,
            ranks=dict(self.ranks),
            stacks={},
            silent={},
            habits=dict(self.habits),
            under_way=dict(self.under_way),
            absent_s=self.known_s,
            testimonies=dict(self.testimonies),
            communicators=tuple(self._communicator(group) for group in self.launched),
            unasked=frozenset(self.unasked),
            setup=self._setup(),
        )

    def _setup(self) -> Setup:
        alike: dict[RankFacts, list[int]] = {}
        for rank in sorted(self.facts.keys() | self.models.keys() | self.samplers.keys()):
            said = RankFacts(
                values=bounded(self.facts.get(rank, {}).items()),
                models=self.models.get(rank, ()),
                samplers=self.samplers.get(rank, ()),
            )
            alike.setdefault(said, []).append(rank)
        return Setup(
            alike=tuple(LikeRanks(facts=said, places=self._places(ranks)) for said, ranks in alike.items()),
            parameters=self.parameters,
            worlds={size: self._places(ranks) for size, ranks in self.worlds.items()},
            twice=self.twice,
            clocks_s=self.clocks_s,
        )

    def _places(self, ranks: list[int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        hosts = sorted({self.ranks[rank].host for rank in ranks})
        return tuple((host, tuple(rank for rank in ranks if self.ranks[rank].host == host)) for host in hosts)

    def do_sampler(self, words: list[str]) -> None:
        site, options = site_of(words[1]), dict(word.split("=", 1) for word in words[3:] if "=" in word)
        said = SamplerFacts(
            site=(site.file, site.line, site.function), kind="DistributedSampler", parts=int(words[2]),
            part=next((word for word in words[3:] if "=" not in word), ""), samples=int(options.get("samples", "0")),
            length=int(options.get("length", "0")),
            order=f"shuffled with seed {options['seed']}" if "seed" in options else "",
        )  # fmt: skip
        for rank in ranks_of(words[0]):
            self.samplers[rank] = (*self.samplers.get(rank, ()), said)

    def do_facts(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self.facts.setdefault(rank, {}).update(word.split("=", 1) for word in words[1:])

    def do_wrapped(self, words: list[str]) -> None:
        names, kind, members, *rest = words
        used = rest[0] == "used"
        chain = Chain(kind, members)
        for unit in " ".join(f'"{word}"' if word != "/" else word for word in rest[used:]).split("/"):
            chain.add([tuple(each.split(" ", 1)) for each in shlex.split(unit)], ["/home/user/train.py", 20, "main"])
        if used:
            chain.used = len(chain.units)
        said = json.dumps({"models": [chain.told()]})
        for rank in ranks_of(names):
            self.models[rank] = (*self.models.get(rank, ()), *parse(said).models)
            self.parameters.setdefault((kind, members), {})[rank] = parse_parameters(said, (kind, members))

    def do_says(self, words: list[str]) -> None:
        self.worlds[int(words[1])] = ranks_of(words[0])

    def do_twice(self, words: list[str]) -> None:
        self.twice |= {rank: tuple(words[1:]) for rank in ranks_of(words[0])}

    def do_clock(self, words: list[str]) -> None:
        self.clocks_s[words[0]] = float(words[1])

    def _change(self, rank: int, **changes: object) -> None:
        self.ranks[rank] = dataclasses.replace(self.ranks[rank], **changes)

    def _main(self, rank: int, **changes: object) -> None:
        first, *rest = self.ranks[rank].threads
        self._change(rank, threads=(dataclasses.replace(first, **changes), *rest))

    def _process(self, rank: int, **changes: object) -> None:
        self._change(rank, process=dataclasses.replace(self.ranks[rank].process, **changes))

    def do_world(self, words: list[str]) -> None:
        self.world = int(words[0])
        hosts = int(options_of(words[1:]).get("hosts", "1"))
        per_host = self.world // hosts
        for rank in range(self.world):
            self.ranks[rank] = RankView(
                rank=rank, local_rank=rank % per_host, host=f"node{rank // per_host}", pid=1000 + rank, device="",
                world_size=self.world, local_world_size=per_host, attempt=0,
                process=ProcessView(state=ProcessState.SLEEPING), pulse_age_s=0.2, initialised=True,
                threads=(ThreadView(tid=1000 + rank, main=True, issued=10),),
            )  # fmt: skip

    def do_unseen(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            del self.ranks[rank]

    def do_unasked(self, words: list[str]) -> None:
        self.do_unseen(words)
        self.unasked |= set(ranks_of(words[0]))

    def do_group(self, words: list[str]) -> None:
        self.groups[words[0]] = ranks_of(words[1])
        for rank in self.groups[words[0]]:
            self._put_group(rank, words[0], 0, None)

    def do_lost(self, words: list[str]) -> None:
        size = int(options_of(words[1:]).get("size", "0"))
        for rank, view in list(self.ranks.items()):
            lost = (
                dataclasses.replace(g, ranks=(), size=size, members_digest=int(size > 0)) if g.name == words[0] else g
                for g in view.groups
            )
            self._change(rank, groups=tuple(lost))

    def do_unused(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._change(rank, groups=tuple(g for g in self.ranks[rank].groups if g.name != words[1]))

    def _put_group(self, rank: int, name: str, enqueued: int, pending: OpView | None) -> None:
        completed = enqueued - (1 if pending else 0)
        group = GroupView(
            name=name, desc=name, ranks=tuple(self.groups[name]), enqueued=enqueued, completed=completed,
            prefix_hash=0, pending=pending,
        )  # fmt: skip
        others = tuple(g for g in self.ranks[rank].groups if g.name != name)
        self._change(rank, groups=(*others, group))

    def _route(self, rank: int, site: CallSite, found: dict[str, str]) -> int:
        """Return the number of the way to a site, by the lines that called it."""
        if "from" not in found:
            return 0
        way = (site, *(site_of(caller) for caller in found["from"].split("+")))
        routes = self.ranks[rank].routes
        if way not in routes:
            routes = (*routes, way)
            self._change(rank, routes=routes)
        return routes.index(way) + 1

    def _module(self, rank: int, found: dict[str, str]) -> int:
        """Return the number of the module in whose forward an operation is made."""
        if "module" not in found:
            return 0
        module = module_of(found["module"])
        modules = self.ranks[rank].modules
        if module not in modules:
            modules = (*modules, module)
            self._change(rank, modules=modules)
        return modules.index(module) + 1

    def do_modes(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._change(rank, modes=tuple(module_of(word) for word in words[1:]))

    def _issue(self, rank: int, target: str, op: Op, site: CallSite, found: dict[str, str]) -> OpView:
        group, _, seq = target.partition("#")
        last = [o for o in self.ranks[rank].history if o.group == group]
        issued = OpView(
            group=group, seq=int(seq), op=op, site=site, age_s=float(found.get("for", "0")),
            numel=int(found.get("numel", "100")), dtype=found.get("dtype", "float32"),
            peer=int(found.get("root", "-1")),
            reduce_op=found.get("reduce", ""), batch=int(found.get("batch", str(last[-1].batch if last else 0))),
            forwards=int(found.get("forward", str(last[-1].forwards if last else 0))),
            loader=1 if self.ranks[rank].loaders else 0, thread=int(found.get("thread", "1")) * 1000 + rank,
            label=found.get("label", ""), in_order="sync" in found, route=self._route(rank, site, found),
            module=self._module(rank, found),
        )  # fmt: skip
        if op is Op.BARRIER:
            issued = dataclasses.replace(issued, numel=0, dtype="")
        self._change(rank, history=(*self.ranks[rank].history, issued))
        self._put_group(rank, group, int(seq), issued)
        return issued

    def do_in(self, words: list[str]) -> None:
        names, target, op, site, *rest = words
        found = options_of(rest)
        for rank in ranks_of(names):
            issued = self._issue(rank, target, Op(op), site_of(site), found)
            wait = WaitView(
                kind=WaitKind.COLLECTIVE, age_s=float(found["for"]), group=issued.group, seq=issued.seq, op=issued.op,
                peer=issued.peer, site=issued.site,
            )  # fmt: skip
            self._block(rank, wait)

    def _block(self, rank: int, wait: WaitView) -> None:
        still = {"cpu_still_s": wait.age_s, "same_s": wait.age_s}
        self._main(rank, wait=wait, doing=wait.site, frames=(wait.site,), **still)
        self._process(rank, cpu_still_s=wait.age_s, io_still_s=wait.age_s)

    def do_device(self, words: list[str]) -> None:
        names, target, op, site, *rest = words
        name = target.partition("#")[0]
        for rank in ranks_of(names):
            before = next(group for group in self.ranks[rank].groups if group.name == name)
            self._issue(rank, target, Op(op), site_of(site), options_of(rest))
            *others, after = self.ranks[rank].groups
            oldest = before if before.pending is not None else after
            blind = "blind" in options_of(rest)
            group = dataclasses.replace(
                after, asynchronous=True, blind=blind, completed=oldest.completed,
                pending=None if blind else oldest.pending,
            )  # fmt: skip
            self._change(rank, groups=(*others, group))

    def do_host(self, words: list[str]) -> None:
        names, site, *rest = words
        found = options_of(rest)
        age_s = float(found["for"])
        cpu_still_s = 0.0 if "spins" in found else age_s
        for rank in ranks_of(names):
            place = site_of(site)
            wait = WaitView(kind=WaitKind(found["in"]), age_s=age_s, site=place) if "in" in found else None
            issued = self.ranks[rank].history[-1]
            if wait is not None and wait.kind is WaitKind.COLLECTIVE:
                wait = dataclasses.replace(wait, group=issued.group, seq=issued.seq, op=issued.op, site=issued.site)
            self._main(
                rank, wait=wait, doing=place, frames=(place,), leaf=f"step {site}", calling=found.get("calling", ""),
                same_s=age_s, cpu_still_s=cpu_still_s,
            )  # fmt: skip
            self._process(rank, cpu_still_s=cpu_still_s, io_still_s=age_s)

    def do_engine(self, words: list[str]) -> None:
        """engine RANKS: a thread of the autograd engine that has issued buckets and has no Python frame now."""
        for rank in ranks_of(words[0]):
            thread = ThreadView(tid=3000 + rank, main=False, issued=9, cpu_still_s=9.0)
            self._change(rank, threads=(*self.ranks[rank].threads, thread))

    def do_backward(self, words: list[str]) -> None:
        names, target, site, *rest = words
        found = options_of(rest)
        for rank in ranks_of(names):
            issued = self._issue(rank, target, Op.ALL_REDUCE, site_of(site), found)
            wait = WaitView(kind=WaitKind.BACKWARD, age_s=float(found["for"]) + 0.1, site=issued.site)
            self._block(rank, wait)
            cpu_s = float(found.get("cpu", found["for"]))
            self._main(rank, leaf="_engine_run_backward graph.py:900", cpu_still_s=cpu_s)

    def _p2p(self, words: list[str], kind: WaitKind) -> None:
        name, target, site, *rest = words
        rank, found = int(name), options_of(rest)
        peer, _, count = target.partition("#")
        op = Op.SEND if kind is WaitKind.SEND else Op.RECV
        group = next(iter(self.groups))
        issued_so_far, through = int(count), int(count) - 1
        counts = (
            {"sends": issued_so_far, "sends_completed": through}
            if op is Op.SEND
            else {"recvs": issued_so_far, "recvs_completed": int(found.get("through", through))}
        )
        issued = OpView(group=group, seq=int(count), op=op, peer=int(peer), site=site_of(site))
        self._change(rank, peers=(*self.ranks[rank].peers, PeerView(group=group, peer=int(peer), **counts)))
        self._change(rank, history=(*self.ranks[rank].history, issued))
        self._block(
            rank,
            WaitView(kind=kind, age_s=float(found["for"]), group=group, seq=int(count), op=op, peer=int(peer),
                     site=issued.site),
        )  # fmt: skip

    def do_send(self, words: list[str]) -> None:
        self._p2p(words, WaitKind.SEND)

    def do_recv(self, words: list[str]) -> None:
        self._p2p(words, WaitKind.RECV)

    def do_posted(self, words: list[str]) -> None:
        """posted RANK PEER sends N recvs N: p2p operations that are through."""
        rank, peer, found = int(words[0]), int(words[1]), options_of(words[2:])
        counts = {key: int(value) for key, value in found.items()}
        counts |= {f"{key}_completed": value for key, value in counts.items() if key in ("sends", "recvs")}
        group = next(iter(self.groups))
        self._change(rank, peers=(*self.ranks[rank].peers, PeerView(group=group, peer=peer, **counts)))

    def do_unattached(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._change(rank, attached=False, initialised=False)

    def do_init(self, words: list[str]) -> None:
        age_s = float(options_of(words[2:])["for"])
        for rank in ranks_of(words[0]):
            self._change(rank, initialised=False)
            self._block(rank, WaitView(kind=WaitKind.INIT, age_s=age_s, site=site_of(words[1])))

    def do_making(self, words: list[str]) -> None:
        """making RANKS SITE for S: in new_group."""
        age_s = float(options_of(words[2:])["for"])
        for rank in ranks_of(words[0]):
            self._block(rank, WaitView(kind=WaitKind.NEW_GROUP, age_s=age_s, site=site_of(words[1])))

    def do_key(self, words: list[str]) -> None:
        """key RANKS SITE for S: waits for a key of the store."""
        age_s = float(options_of(words[2:])["for"])
        for rank in ranks_of(words[0]):
            self._block(rank, WaitView(kind=WaitKind.STORE, age_s=age_s, site=site_of(words[1])))

    def do_uninitialised(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._change(rank, initialised=False)

    def do_at(self, words: list[str]) -> None:
        found = options_of(words[2:])
        site, still_s = site_of(words[1]), float(found.get("still", "0"))
        kind = {"data": WaitKind.DATA, "save": WaitKind.SAVE}.get(found.get("in", ""))
        for rank in ranks_of(words[0]):
            wait = WaitView(kind=kind, age_s=still_s, site=site) if kind else None
            self._main(
                rank,
                wait=wait,
                doing=site,
                frames=(site,),
                leaf=f"read {words[1]}",
                same_s=still_s,
                cpu_still_s=still_s,
            )
            io_s = float(found.get("io", str(still_s)))
            self._process(rank, cpu_still_s=float(found.get("cpu", str(still_s))), io_still_s=io_s)

    def do_stopped(self, words: list[str]) -> None:
        age_s = float(options_of(words[1:])["for"])
        for rank in ranks_of(words[0]):
            self._process(rank, state=ProcessState.STOPPED, cpu_still_s=age_s, io_still_s=age_s)
            self._change(rank, pulse_age_s=age_s)

    def do_gil(self, words: list[str]) -> None:
        found = options_of(words[1:])
        age_s = float(found["for"])
        for rank in ranks_of(words[0]):
            self._change(rank, pulse_age_s=age_s)
            cpu_s = 0.0 if "busy" in found else float(found.get("cpu", age_s))
            self._process(rank, cpu_still_s=cpu_s, io_still_s=float(found.get("io", age_s)))

    def do_disk(self, words: list[str]) -> None:
        age_s = float(options_of(words[2:])["for"])
        self.do_at([words[0], words[1], "still", str(age_s)])
        for rank in ranks_of(words[0]):
            self._process(rank, state=ProcessState.DISK_WAIT)

    def do_ended(self, words: list[str]) -> None:
        names, how, value, *rest = words
        site = site_of(rest.pop(0)) if how == "error" and rest and ":" in rest[0] else None
        ago_s = float(options_of(rest).get("ago", "0"))
        ending = {
            "exit": lambda: Ending(kind="exited" if value == "0" else "crashed", exit_code=int(value), age_s=ago_s),
            "signal": lambda: Ending(kind="signalled", signal=int(value), age_s=ago_s),
            "error": lambda: Ending(kind="crashed", exit_code=1, exception=value, site=site, age_s=ago_s),
        }[how]()
        for rank in ranks_of(names):
            self._change(rank, ending=ending)
            self._process(rank, state=ProcessState.GONE)

    def do_handling(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._main(rank, exception=words[1], exception_site=site_of("train.py:30"))
            if "noted" in words:
                self._change(rank, last_exception=words[1], last_exception_s=float(words[-1]))

    def do_loader(self, words: list[str]) -> None:
        found = options_of(words[2:])
        for rank in ranks_of(words[0]):
            loader = LoaderView(
                site=site_of(words[1]), passes=int(found["pass"]), drawn=int(found["drawn"]),
                exhausted="exhausted" in found,
                last_drawn=int(found.get("last", found["drawn"] if "exhausted" in found else "0")),
            )  # fmt: skip
            self._change(rank, loaders=(*self.ranks[rank].loaders, loader))

    def do_history(self, words: list[str]) -> None:
        names, target, op, site, *rest = words
        group, _, span = target.partition("#")
        first, _, last = span.partition("-")
        found = options_of(rest)
        for rank in ranks_of(names):
            done = [
                OpView(
                    group=group, seq=seq, op=Op(op), site=site_of(site), completed=True,
                    numel=0 if op == "barrier" else 100, dtype="" if op == "barrier" else "float32",
                    batch=int(found["batch"]) + n if "batch" in found else 0, loader=1 if "batch" in found else 0,
                    forwards=int(found["forward"]) + n if "forward" in found else 0,
                    thread=int(found.get("thread", "1")) * 1000 + rank,
                    age_s=60.0, route=self._route(rank, site_of(site), found), module=self._module(rank, found),
                )
                for n, seq in enumerate(range(int(first), int(last or first) + 1))
            ]  # fmt: skip
            self._change(rank, history=(*self.ranks[rank].history, *done))
            self._put_group(rank, group, int(last or first), None)

    def do_source(self, words: list[str]) -> None:
        found = options_of(words[2:])
        lines = tuple(int(part) for part in found.pop("lines", "0-0").split("-"))
        note = SourceNote(
            site=site_of(words[1]),
            text="...",
            condition=found.get("if", ""),
            other_branch_ops=tuple(filter(None, found.get("other", "").split(","))),
            loop=found.get("loop", ""),
            loop_lines=(lines[0], lines[1]),
            loop_escapes=(found["escape"],) if "escape" in found else (),
            early_exits=(found["return"],) if "return" in found else (),
            rank_exit=found.get("leaves", ""),
        )
        for rank in ranks_of(words[0]):
            self._change(rank, sources=(*self.ranks[rank].sources, note))

    def do_frames(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._main(rank, frames=tuple(site_of(text) for text in words[1:]))

    def do_endpoint(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._change(rank, endpoint=words[1])

    def do_refused(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._process(rank, io_unknown=True, io_still_s=0.0)

    def do_sampled(self, words: list[str]) -> None:
        found = options_of(words[1:])
        for rank in ranks_of(words[0]):
            self._main(rank, leaf=f"{found.get('in', 'step')} train.py:1", same_s=float(found["same"]))

    def do_seen(self, words: list[str]) -> None:
        taken_s = float(options_of(words[2:]).get("taken", "0"))
        for rank in ranks_of(words[0]):
            self._change(rank, news_age_s=float(words[1]), taken_s=taken_s)

    def do_thread(self, words: list[str]) -> None:
        found = options_of(words[1:])
        still_s = float(found.get("still", "0"))
        for rank in ranks_of(words[0]):
            thread = ThreadView(
                tid=2000 + rank, main=False, issued=int(found["issued"]), same_s=still_s, cpu_still_s=still_s
            )
            self._change(rank, threads=(*self.ranks[rank].threads, thread))

    def do_names(self, words: list[str]) -> None:
        """names RANKS NAME NAME: the main thread and a second one, "-" for one that Python has no name for."""
        for rank in ranks_of(words[0]):
            self._main(rank, name=words[1])
            second = ThreadView(tid=2000 + rank, main=False, issued=1, name=words[2].strip("-"), alive=True)
            self._change(rank, threads=(*self.ranks[rank].threads, second))
            self._change(rank, threads=tuple(dataclasses.replace(t, same_s=9.0, cpu_still_s=9.0) for t in
                                             self.ranks[rank].threads))  # fmt: skip

    def do_destroyed(self, words: list[str]) -> None:
        """destroyed RANKS GROUP: these ranks have destroyed the group."""
        for rank in ranks_of(words[0]):
            groups = tuple(
                dataclasses.replace(group, destroyed=True, pending=None) if group.name == words[1] else group
                for group in self.ranks[rank].groups
            )
            self._change(rank, groups=groups)

    def do_hash(self, words: list[str]) -> None:
        """hash RANKS GROUP N [late]: the hash over all that these ranks issued in a group."""
        for rank in ranks_of(words[0]):
            groups = tuple(
                dataclasses.replace(group, prefix_hash=int(words[2]), late="late" in words)
                if group.name == words[1]
                else group
                for group in self.ranks[rank].groups
            )
            self._change(rank, groups=groups)

    def do_cuda(self, words: list[str]) -> None:
        found = options_of(words[2:])
        for rank in ranks_of(words[0]):
            device = DeviceView(
                uuid=words[1], index=int(found.get("index", "0")), chosen=int(found.get("chosen", "-1")),
                used="used" in found, count=int(found.get("count", "0")), visible=found.get("visible"),
                local_rank=self.ranks[rank].local_rank, backend=found.get("by", "cuda:nccl"),
                sharing=found.get("may", ""), trouble=found.get("sick", ""),
            )  # fmt: skip
            self._change(rank, cuda=device)

    def do_rng(self, words: list[str]) -> None:
        own = int(options_of(words[4:]).get("own", "-1"))
        for rank in ranks_of(words[0]):
            restored = RngRestore(
                call="torch.cuda.set_rng_state_all", saved=int(words[1]), present=int(words[2]), own=own,
                site=site_of(words[3]),
            )  # fmt: skip
            self._change(rank, rng=restored)

    def do_kernel(self, words: list[str]) -> None:
        """kernel RANKS PLACE: where the main thread sits in the kernel."""
        for rank in ranks_of(words[0]):
            self._main(rank, in_kernel=words[1])

    def do_lock(self, words: list[str]) -> None:
        """lock RANK HOLDER PATH SITE for S: waits for a file lock that another process holds (a rank, or "pid")."""
        rank, age_s = int(words[0]), float(options_of(words[4:])["for"])
        self.do_at([words[0], words[3], "still", str(age_s)])
        holder = 999 if words[1] == "pid" else 1000 + int(words[1])
        self._process(rank, lock_holder=holder, lock_path=words[2])

    def do_habit(self, words: list[str]) -> None:
        phase, op, size, *rest = words
        found = options_of(rest)
        longest_s = float(found["longest"])
        name = phase if phase not in Phase.__members__ else ""
        kind = WaitClass(phase=Phase.OTHER if name else Phase[phase], op=op, size=int(size), name=name)
        self.habits[kind] = Habit(
            waits=int(found.get("waits", "3")), longest_s=longest_s, bound_s=float(found.get("bound", 3 * longest_s)),
            longest_still_s=float(found.get("still", "0")), timeout_s=float(found.get("under", "0")),
        )  # fmt: skip

    def do_passed(self, words: list[str]) -> None:
        group, _, seq = words[0].partition("#")
        kinds = tuple(kind for kind in self.habits if kind.phase.name in words[1:])
        self.under_way[group, int(seq)] = kinds

    def do_recorder(self, words: list[str]) -> None:
        """recorder RANKS GROUP#SEQ OP [done] [early N]: what torch's Flight Recorder holds of a group."""
        name, _, number = words[1].partition("#")
        seq, done = int(number), "done" in words
        early = int(words[words.index("early") + 1]) if "early" in words else 0
        for rank in ranks_of(words[0]):
            newest = WitnessedOp(seq=seq, name=words[2], done=done)
            held = WitnessedGroup(
                name=name, enqueued=seq, started=seq, completed=seq if done else seq - 1,
                pending=None if done else newest, newest=(newest,),
            )  # fmt: skip
            seen = {group.name: group.enqueued - early for group in self.ranks[rank].groups}
            self.testimonies[rank] = Testimony(rank=rank, seen=seen, groups=(held,))

    def do_launched(self, words: list[str]) -> None:
        """launched RANKS N [by GROUP]: collectives by NCCL's RAS; "dead" for a rank that it has given up."""
        group = options_of(words[2:]).get("by", next(iter(self.groups)))
        for rank in ranks_of(words[0]):
            self.launched.setdefault(group, {})[rank] = -1 if words[1] == "dead" else int(words[1])
            seen = {each.name: each.enqueued for each in self.ranks[rank].groups}
            self.testimonies.setdefault(rank, Testimony(rank=rank, seen=seen, failure="not asked"))

    def _communicator(self, group: str) -> Communicator:
        members = self.groups[group]
        ranks = tuple(
            CommRank(
                rank=members.index(rank), pid=1000 + rank, launched=max(count, 0), missing=count < 0, dead=count < 0
            )
            for rank, count in self.launched[group].items()
        )
        return Communicator(size=len(members), ranks=ranks)

    def do_known(self, words: list[str]) -> None:
        self.known_s = float(words[0])

    def do_phase(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._change(rank, phase=words[1], phase_s=5.0)

    def do_work(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._main(rank, work=Phase[words[1]])

    def do_save(self, words: list[str]) -> None:
        names, call, path, site, *rest = words
        found = options_of(rest)
        name = found.get("id", path)
        for rank in ranks_of(names):
            save = SaveView(
                call=call, path=path, tid=int(found.get("thread", "1")) * 1000 + rank, began_s=float(found["began"]),
                ended_s=float(found["ended"]) if "ended" in found else None, site=site_of(site),
                identity="" if name == "-" else name, written_bytes=int(found.get("written", "-1")),
                bytes_per_s=float(found.get("rate", "0")), still_s=float(found.get("still", "0")),
                error=found.get("error", ""), refused=found.get("refused", ""), appends="appends" in found,
                unanswered_s=float(found.get("unanswered", "0")), total_bytes=int(found.get("total", "-1")),
                as_before="as_before" in found, lacks_bytes=int(found.get("lacks", "0")),
                free_bytes=int(found.get("free", "-1")),
            )  # fmt: skip
            self._change(rank, saves=(*self.ranks[rank].saves, save))

    def do_limit(self, words: list[str]) -> None:
        for rank, view in list(self.ranks.items()):
            groups = (
                dataclasses.replace(g, timeout_s=float(words[1])) if g.name == words[0] else g for g in view.groups
            )
            self._change(rank, groups=tuple(groups))

    def do_steps(self, words: list[str]) -> None:
        for rank in ranks_of(words[0]):
            self._change(rank, steps=int(words[1]))

    def do_timeout(self, words: list[str]) -> None:
        for rank in self.ranks:
            self._change(rank, timeout_s=float(words[0]))
