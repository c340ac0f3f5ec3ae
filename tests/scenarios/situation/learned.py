"""Reads what the job has done before, and what other witnesses say."""

from collections.abc import Mapping

from ncclwatch.contract.model.job import Habit, WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.testimony import Testimony, WitnessedGroup, WitnessedOp
from tests.scenarios.situation.state import Command, State
from tests.scenarios.situation.words import options_of, ranks_of


def habit(state: State, words: list[str]) -> None:
    phase, op, size, *rest = words
    found = options_of(rest)
    longest_s = float(found["longest"])
    name = phase if phase not in Phase.__members__ else ""
    kind = WaitClass(phase=Phase.OTHER if name else Phase[phase], op=op, size=int(size), name=name)
    state.habits[kind] = Habit(
        waits=int(found.get("waits", "3")), longest_s=longest_s, bound_s=float(found.get("bound", 3 * longest_s)),
        longest_still_s=float(found.get("still", "0")), often_still_s=float(found.get("often", "0")),
        timeout_s=float(found.get("under", "0")),
    )  # fmt: skip


def passed(state: State, words: list[str]) -> None:
    group, _, seq = words[0].partition("#")
    kinds = tuple(kind for kind in state.habits if kind.phase.name in words[1:])
    state.under_way[group, int(seq)] = kinds


def recorder(state: State, words: list[str]) -> None:
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
        seen = {group.name: group.enqueued - early for group in state.ranks[rank].groups}
        state.testimonies[rank] = Testimony(rank=rank, seen=seen, groups=(held,))


def launched(state: State, words: list[str]) -> None:
    """launched RANKS N [by GROUP]: collectives by NCCL's RAS; "dead" for a rank that it has given up."""
    group = options_of(words[2:]).get("by", next(iter(state.groups)))
    for rank in ranks_of(words[0]):
        state.launched.setdefault(group, {})[rank] = -1 if words[1] == "dead" else int(words[1])
        seen = {each.name: each.enqueued for each in state.ranks[rank].groups}
        state.testimonies.setdefault(rank, Testimony(rank=rank, seen=seen, failure="not asked"))


COMMANDS: Mapping[str, Command] = {"habit": habit, "passed": passed, "recorder": recorder, "launched": launched}
