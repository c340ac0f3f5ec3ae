"""Replays calls of all ranks with c10d's matching rules, and says who then waits for ever.

- The n-th collective of a member in a group meets the n-th of the others, whatever they are. Parts pair where
  operation, type, size, root and reduction agree (an all_gather may be ragged). Call sites do not matter, so wrong
  calls may pair silently. Parts that do not agree never end; where a backend aborts instead, a rank is gone.
- The root of a broadcast or a scatter, and whoever sends to the root of a gather, needs nobody. A receiver of a
  broadcast needs those above it in gloo's binomial tree.
- The n-th send of a pair of ranks, in one group and with one tag, meets the n-th receive. A receive from any source
  takes what was sent first. An eager send is through at once.
- A call with async_op=False holds up what its thread issues later; one with async_op=True does not, but for calls that
  are said to wait for it. On a stream, operations of one group run in their order: after one whose parts do not agree,
  none ends.

What a rank does depends on others only through waits, so each order of steps leads to one last state (but for receives
from any source). An actor is a rank, or a class of ranks that all do the same.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from ncclwatch.contract.model.rank import Op
from ncclwatch_server.judge.theory.repair.lines import Place, place_of
from ncclwatch_server.judge.theory.repair.tapes import Call, End, Ranks, Tapes

_FROM_ROOT = (Op.BROADCAST, Op.SCATTER)
_ANY = -1


class _Kind(IntEnum):
    ALL = 0  # needs all members
    SOME = 1  # a part of a rooted collective that needs some members
    SEND = 2
    RECV = 3
    RECV_ANY = 4


class _Part(NamedTuple):
    """What one actor contributes with one call."""

    kind: int
    channel: int
    agreed: int  # number of what the parts must agree on
    need: Ranks  # actors that must have entered with the same; of p2p: the other side
    waits: bool
    inbox: int  # of p2p: where receives from any source look
    joins: bool  # it waits for what its rank issued asynchronously before


class Script(NamedTuple):
    """What one actor does from a consistent cut on."""

    calls: Sequence[int]
    end: End
    late: int = -1  # index of a call that it waits for after all others; -1: none


class _Meeting:
    """One collective, as its members come to it."""

    __slots__ = ("agreed", "entered", "for_all", "for_one")

    def __init__(self, agreed: int) -> None:
        self.agreed = agreed  # of who came first
        self.entered: dict[int, int] = {}
        # (actor, index) of parts that are not through, and for those that do not need all whom each needs next.
        self.for_all: list[tuple[int, int]] = []
        self.for_one: dict[int, list[tuple[int, int]]] = {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state in which nothing goes on any more."""

    at: Sequence[int]  # by actor: index of the call it waits in; len(calls): it has made all of them
    stuck: frozenset[int]  # actors that wait, and that no continuation frees


class Stage:
    """The actors of a job and what each call means for each. Made once, used by many replays."""

    def __init__(
        self,
        tapes: Tapes,
        actor_of: Mapping[int, int] | None = None,
        kin: Mapping[str, str] | None = None,
        *,
        joins: Collection[Place] = (),
    ) -> None:
        """`actor_of` maps ranks with news to actors 0..n-1; `kin` maps groups to one that stands for them.

        Calls at `joins` wait for all asynchronous collectives that their rank issued before. That is not recorded.
        """
        self.tapes, self.joins = tapes, frozenset(joins)
        self.actor_of = actor_of or {rank: number for number, rank in enumerate(tapes.by_rank)}
        self.kin = kin or {}
        self.size = max(self.actor_of.values(), default=-1) + 1
        self.lead: list[int] = [-1] * self.size  # a rank of each actor
        for rank, actor in self.actor_of.items():
            if self.lead[actor] < 0:
                self.lead[actor] = rank
        self.on_device: list[bool] = []  # by channel
        self._parts: list[dict[int, _Part]] = [{} for _ in range(self.size)]
        self._channels: dict[tuple[object, ...], int] = {}
        self._agreed: dict[tuple[object, ...], int] = {}
        self._members: dict[str, Ranks] = {}

    def part(self, actor: int, number: int) -> _Part:
        """Return what a call means for an actor."""
        found = self._parts[actor].get(number)
        if found is None:
            call = self.tapes.calls[number]
            make = self._pair if call.op.is_p2p else self._collective
            found = self._parts[actor][number] = make(actor, call)
        return found

    def _actor(self, rank: int) -> int:
        return self.actor_of.get(rank, -2)

    def members(self, group: str) -> Ranks:
        """Return the actors of a group that there is news of."""
        found = self._members.get(group)
        if found is None:
            ranks = self.tapes.groups.get(group, ())
            actors = {self.actor_of[rank] for rank in ranks if rank in self.actor_of}
            found = self._members[group] = tuple(sorted(actors))
        return found

    def _channel(self, group: str, *rest: object) -> int:
        key = (self.kin.get(group, group), *rest)
        found = self._channels.get(key)
        if found is None:
            found = self._channels[key] = len(self.on_device)
            self.on_device.append(group in self.tapes.on_device)
        return found

    def _collective(self, actor: int, call: Call) -> _Part:
        members = self.members(call.group)
        ranks = self.tapes.groups.get(call.group, ())
        place = ranks.index(call.peer) if call.peer in ranks else call.peer
        numel = 0 if call.op is Op.ALL_GATHER else call.numel
        key = (call.op, call.dtype, numel, place, call.reduce_op)
        agreed = self._agreed.setdefault(key, len(self._agreed))
        channel, kind, need = self._channel(call.group), _Kind.ALL, members
        rank = self.lead[actor]
        if call.peer in ranks and rank in ranks:
            if call.op in _FROM_ROOT:
                kind, need = _Kind.SOME, self._below_root(rank, call, ranks)
            elif call.op is Op.GATHER and rank != call.peer:
                kind, need = _Kind.SOME, ()
        joins = call.waits and place_of(call) in self.joins
        return _Part(kind, channel, agreed, need, call.waits, -1, joins)

    def _below_root(self, rank: int, call: Call, ranks: Ranks) -> Ranks:
        if rank == call.peer:
            return ()
        above = (call.peer,) if call.op is Op.SCATTER else above_in_tree(rank, call.peer, ranks)
        return tuple(dict.fromkeys(self.actor_of[each] for each in above if each in self.actor_of))

    def _pair(self, actor: int, call: Call) -> _Part:
        peer = self._actor(call.peer) if call.peer >= 0 else _ANY
        source, target = (actor, peer) if call.op is Op.SEND else (peer, actor)
        inbox = self._channel(call.group, "inbox", target, call.tag)
        channel = self._channel(call.group, source, target, call.tag)
        kind = _Kind.SEND if call.op is Op.SEND else _Kind.RECV_ANY if peer == _ANY else _Kind.RECV
        need = tuple(m for m in self.members(call.group) if m != actor) if peer == _ANY else (peer,)
        joins = call.waits and place_of(call) in self.joins
        return _Part(kind, channel, 0, need, call.waits, inbox, joins)


def above_in_tree(rank: int, root: int, members: Ranks) -> Ranks:
    """Return from whom, over whom, a member gets the bytes of a broadcast in gloo's binomial tree, the root last."""
    size, first = len(members), members.index(root)
    place, found = (members.index(rank) - first) % size, []
    while place:
        place ^= 1 << (place.bit_length() - 1)
        found.append(members[(place + first) % size])
    return tuple(found)


def play(stage: Stage, scripts: Sequence[Script], *, eager: bool) -> Outcome:
    """Let all actors go as far as they can, from a cut at which nothing is under way."""
    return _Replay(stage, scripts, eager=eager).outcome()


class _Replay:
    def __init__(self, stage: Stage, scripts: Sequence[Script], *, eager: bool) -> None:
        self.stage, self.scripts, self.eager = stage, scripts, eager
        self.at = [0] * len(scripts)
        self.counts: list[dict[int, int]] = [{} for _ in scripts]
        self.meetings: dict[tuple[int, int], _Meeting] = {}
        self.sends: dict[int, list[tuple[int, int]]] = {}  # by channel: (actor, index) without a receive
        self.recvs: dict[int, list[tuple[int, int]]] = {}
        self.mail: dict[int, list[int]] = {}  # by inbox: channels of messages without a receive, oldest first
        self.broken: dict[int, int] = {}  # by channel of a stream: number of the first whose parts do not agree
        self.open: set[tuple[int, int]] = set()  # (actor, index) of async calls that are not through
        self.unjoined = [0] * len(scripts)  # by actor: asynchronous collectives that are not through
        self.held: set[int] = set()  # actors that wait for these before they issue their next call
        self.ready = list(range(len(scripts)))
        while self.ready:
            self._advance(self.ready.pop())

    def _advance(self, actor: int) -> None:
        """Issue calls of an actor until one holds it up."""
        calls = self.scripts[actor].calls
        parts, at, size = self.stage._parts[actor], self.at[actor], len(calls)
        while at < size:
            self.at[actor] = at
            number = calls[at]
            part = parts.get(number) or self.stage.part(actor, number)
            kind = part[0]
            if part[6] and self.unjoined[actor]:
                self.held.add(actor)
                break
            through = self._enter(actor, at, part) if kind <= _Kind.SOME else self._message(actor, at, part)
            if not through:
                if part[4]:
                    break
                self.open.add((actor, at))
                self.unjoined[actor] += kind <= _Kind.SOME
            at += 1
        self.at[actor] = at

    def _enter(self, actor: int, index: int, part: _Part) -> bool:
        """Count an actor in; returns whether it is through at once."""
        kind, channel, agreed, *_ = part
        counts = self.counts[actor]
        seq = counts[channel] = counts.get(channel, 0) + 1
        meeting = self.meetings.get((channel, seq))
        if meeting is None:
            meeting = self.meetings[channel, seq] = _Meeting(agreed)
        elif meeting.agreed != agreed and self.stage.on_device[channel]:
            self.broken[channel] = min(seq, self.broken.get(channel, seq))
        meeting.entered[actor] = agreed
        through = self._may_end(meeting, channel, seq, part)
        if meeting.for_all or meeting.for_one:
            self._wake(meeting, channel, seq, actor)
        if not through and kind == _Kind.SOME:
            self._wait_for_next(meeting, (actor, index), part)
        elif not through:
            meeting.for_all.append((actor, index))
        return through

    def _wait_for_next(self, meeting: _Meeting, waiter: tuple[int, int], part: _Part) -> None:
        """Let a part wait for the first of those it needs who has not entered; if all have, they do not agree."""
        missing = next((each for each in part[3] if each not in meeting.entered), None)
        if missing is not None:
            meeting.for_one.setdefault(missing, []).append(waiter)

    def _may_end(self, meeting: _Meeting, channel: int, seq: int, part: _Part) -> bool:
        if self.broken and self.broken.get(channel, seq) < seq:
            return False
        entered, agreed, need = meeting.entered, part[2], part[3]
        if len(entered) < len(need):
            return False
        return all(entered.get(each) == agreed for each in need)

    def _part_of(self, waiter: tuple[int, int]) -> _Part:
        actor, index = waiter
        return self.stage._parts[actor][self.scripts[actor].calls[index]]

    def _wake(self, meeting: _Meeting, channel: int, seq: int, entered: int) -> None:
        """See who is through now that one more actor has entered."""
        for waiter in meeting.for_one.pop(entered, ()):
            part = self._part_of(waiter)
            if self._may_end(meeting, channel, seq, part):
                self._done(*waiter)
            else:
                self._wait_for_next(meeting, waiter, part)
        if not meeting.for_all or len(meeting.entered) < len(self._part_of(meeting.for_all[0])[3]):
            return
        waiting, meeting.for_all = meeting.for_all, []
        for waiter in waiting:
            if self._may_end(meeting, channel, seq, self._part_of(waiter)):
                self._done(*waiter)
            else:
                meeting.for_all.append(waiter)

    def _done(self, actor: int, index: int) -> None:
        if (actor, index) in self.open:
            self.open.discard((actor, index))
            kind = self.stage._parts[actor][self.scripts[actor].calls[index]].kind
            self.unjoined[actor] -= kind <= _Kind.SOME
            if not self.unjoined[actor] and actor in self.held:
                self.held.discard(actor)
                self.ready.append(actor)
        elif self.at[actor] == index:
            self.at[actor] = index + 1
            self.ready.append(actor)

    def _message(self, actor: int, index: int, part: _Part) -> bool:
        """Let a send and a receive meet; returns whether this side is through at once."""
        kind, channel, _, _, _, inbox, _ = part
        if kind == _Kind.SEND:
            waiting = self.recvs.get(channel) or self.recvs.get(inbox)
            if waiting:
                self._done(*waiting.pop(0))
                return True
            self.sends.setdefault(channel, []).append((actor, index))
            self.mail.setdefault(inbox, []).append(channel)
            return self.eager
        if kind == _Kind.RECV_ANY:
            waiting_mail = self.mail.get(inbox)
            source = waiting_mail[0] if waiting_mail else -1
        else:
            source = channel if self.sends.get(channel) else -1
        if source >= 0:
            self.mail[inbox].remove(source)
            sender = self.sends[source].pop(0)
            self._done(*sender)
            return True
        self.recvs.setdefault(inbox if kind == _Kind.RECV_ANY else channel, []).append((actor, index))
        return False

    def outcome(self) -> Outcome:
        """Return the last state: waits that a rank with an unknown future can end are not stuck."""
        waits = {}
        free = set()
        for actor, script in enumerate(self.scripts):
            at = self.at[actor]
            if at == len(script.calls) and (actor, script.late) in self.open:
                at = script.late
            if actor in self.held:
                at = min(index for other, index in self.open if other == actor)
            if at < len(script.calls):
                waits[actor] = self.stage._parts[actor][script.calls[at]], self._seq_at(actor, at)
            elif script.end in (End.BLOCKED, End.FREE):
                free.add(actor)
        stuck = set(waits)
        moved = bool(free)
        while moved and stuck:
            moved = False
            for actor in list(stuck):
                if self._may_be_freed(*waits[actor], free):
                    stuck.discard(actor)
                    free.add(actor)
                    moved = True
        ats = [
            script.late if at == len(script.calls) and (actor, script.late) in self.open else at
            for actor, (at, script) in enumerate(zip(self.at, self.scripts, strict=True))
        ]
        return Outcome(at=ats, stuck=frozenset(stuck))

    def _seq_at(self, actor: int, index: int) -> int:
        """Return the number of a collective that an actor has issued."""
        calls, parts = self.scripts[actor].calls, self.stage._parts[actor]
        channel = parts[calls[index]].channel
        return sum(parts[calls[each]].channel == channel for each in range(index + 1))

    def _may_be_freed(self, part: _Part, seq: int, free: set[int]) -> bool:
        if part.kind == _Kind.RECV_ANY:
            return any(each in free for each in part.need)
        if part.kind > _Kind.SOME:
            return part.need[0] in free or part.need[0] == -2
        if self.broken.get(part.channel, seq) < seq:
            return False
        entered = self.meetings[part.channel, seq].entered
        return all(entered[each] == part.agreed if each in entered else each in free for each in part.need)
