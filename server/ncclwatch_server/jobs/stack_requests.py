"""Keeps the stacks that a reader has asked for: of which ranks, and what has come so far.

A capture is apart from what is gathered for verdicts: the judge does not see it, and what is asked for here changes no
incident. Everything has a bound: ranks of one capture, captures of a job at a time, seconds until it is answered with
what there is.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ncclwatch.contract.model.rank import StackDump
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.evidence.inspection import Question
from ncclwatch_server.incidents.book import Incident

AT_ONCE_MAX = 2  # captures of one job
RANKS_MAX = 256  # of one capture; up to this world size all ranks are looked at
SAMPLE_MAX = 64  # ranks of a bigger job that are looked at when none are named
NATIVE_MAX = 16  # ranks that may be halted for a second each, to read native frames
PATIENCE_S = 20.0  # an agent dumps one rank after the other, and gives each 5 s
PATIENCE_NATIVE_S = 60.0


@dataclass(slots=True, kw_only=True, eq=False)
class Capture:
    """One question of one reader."""

    questions: dict[Question, tuple[int, ...]]  # unanswered, with the ranks that each is about
    unasked: dict[int, str] = field(default_factory=dict)  # rank -> why it could not be asked
    dumps: dict[int, StackDump] = field(default_factory=dict)
    over: asyncio.Event = field(default_factory=asyncio.Event)  # every question is answered, or its line broke

    def __post_init__(self) -> None:
        """Nothing asked is answered at once."""
        self._settle()

    def receive_stacks(self, dumps: Iterable[StackDump], question: Question) -> bool:
        """Keep the answer to a question. Returns whether it was one of this capture."""
        asked = self.questions.pop(question, None)
        if asked is None:
            return False
        self.dumps.update((dump.rank, dump) for dump in dumps if dump.rank in asked)
        self._settle()
        return True

    def lose(self, link: int) -> None:
        """Expect no answers of a connection that broke."""
        for question in [question for question in self.questions if question[0] == link]:
            for rank in self.questions.pop(question):
                self.unasked[rank] = "the connection to its agent broke before it answered"
        self._settle()

    def unseen(self, waited_s: float) -> dict[int, str]:
        """Return for which ranks there is no stack, and why, once this is over or has been waited for."""
        found = dict(self.unasked)
        for ranks in self.questions.values():
            found.update((rank, f"its agent has not answered within {waited_s:.0f} s") for rank in ranks)
        found.update((rank, dump.failure) for rank, dump in self.dumps.items() if not dump.threads)
        return dict(sorted(found.items()))

    def _settle(self) -> None:
        if not self.questions:
            self.over.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Whose stacks to look at when nobody was named, and in words how they were chosen."""

    ranks: tuple[int, ...]
    words: str


def choose(world_size: int, incidents: Iterable[Incident]) -> Choice:
    """Return the ranks that tell most: all of a small job, else those of open incidents and some of everywhere. Pure.

    In a big job most ranks stand in the same few places: a sample at even distances shows those, and the incidents
    name who differs.
    """
    if world_size <= RANKS_MAX:
        return Choice(ranks=tuple(range(world_size)), words="all ranks")
    involved: dict[int, None] = {}
    for incident in incidents:
        if incident.open:
            victims = incident.verdict.victims
            involved |= dict.fromkeys(culprit.rank for culprit in incident.verdict.culprits)
            involved |= dict.fromkeys(victims[:: max(1, len(victims) // 8)][:8])
    suspects = tuple(involved)[: SAMPLE_MAX // 2]
    # An odd step falls on every place in a node and in a tensor-parallel group in turn; 16 would always meet the first.
    step = -(-world_size // (SAMPLE_MAX - len(suspects))) | 1
    ranks = tuple(sorted({*suspects, *range(0, world_size, step)}))
    words = f"{len(ranks)} of {world_size} ranks: one in {step}"
    return Choice(ranks=ranks, words=f"{words}, and {len(suspects)} of open incidents" if suspects else words)


def deep_ranks(wanted: tuple[int, ...], named: bool, incidents: Iterable[Incident]) -> tuple[int, ...]:
    """Return whose native frames to read: of the ranks that were named, else of the culprits of open incidents. Pure.

    Each of them may be halted for a second, so it is never everybody of a big job. () if there are none to choose.
    """
    if named or len(wanted) <= NATIVE_MAX:
        return wanted
    culprits = {culprit.rank for each in incidents if each.open for culprit in each.verdict.culprits}
    return tuple(rank for rank in wanted if rank in culprits)[:NATIVE_MAX]


def why_not_native(dumps: Mapping[int, StackDump], deep: Iterable[int]) -> str:
    """Return what to say of ranks that were to be looked at closely and were not, "" if there are none."""
    plain = [rank for rank in deep if rank in dumps and dumps[rank].threads and not dumps[rank].native]
    if not plain:
        return ""
    return (
        f"no native frames of {ranks_words(plain)}: a rank that works is not halted for them, and where the kernel "
        "forbids tracing they cannot be read"
    )
