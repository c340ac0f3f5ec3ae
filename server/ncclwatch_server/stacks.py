"""Which stacks and testimonies belong to a verdict, which stacks are the same, and who stands where by them?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ncclwatch.contract.model import MergedStack, StackDump, Verdict
from ncclwatch.contract.ownership import is_users_by_path
from ncclwatch.contract.stack_places import MAIN_THREAD, place_of
from ncclwatch.contract.stack_tree import Gang, classes, gangs, tree, tree_lines
from ncclwatch.contract.testimony import Communicator, Testimony
from ncclwatch_server import settings
from ncclwatch_server.inspection import Question

MERGED_MAX = 32


@dataclass(slots=True, kw_only=True)
class Gathering:
    """Stacks and testimonies under way for verdicts that stand."""

    started_at: float
    verdicts: list[Verdict]
    judged_at: float  # when the verdicts were said
    questions: set[Question] = field(default_factory=set)
    dumps: dict[int, StackDump] = field(default_factory=dict)
    testimonies: dict[int, Testimony] = field(default_factory=dict)
    communicators: tuple[Communicator, ...] = ()
    opened: bool = False  # the verdicts have become incidents
    fresh: bool = False  # dumps came since the incidents were last updated

    def take(self, dumps: Iterable[StackDump], question: Question) -> None:
        """Keep the dumps of an answer."""
        for dump in dumps:
            if dump.rank in self.dumps or len(self.dumps) < settings.STACK_RANKS_MAX:
                self.dumps[dump.rank] = dump
                self.fresh = True
        self.questions.discard(question)

    def hear(self, testimonies: Iterable[Testimony], communicators: Iterable[Communicator], question: Question) -> None:
        """Keep what other witnesses say in an answer."""
        for testimony in testimonies:
            if testimony.rank in self.testimonies or len(self.testimonies) < settings.STACK_RANKS_MAX:
                self.testimonies[testimony.rank] = testimony
                self.fresh = True
        # Each node's RAS may tell of the same communicators, in the same words.
        known = dict.fromkeys((*self.communicators, *communicators))
        self.communicators = tuple(known)[: settings.COMMUNICATORS_MAX]
        self.questions.discard(question)

    def lose(self, link: int) -> None:
        """Expect no answers of a connection that broke."""
        self.questions = {question for question in self.questions if question[0] != link}

    def ready(self, now: float) -> bool:
        """Whether the incidents must not wait any longer."""
        return not self.questions or now - self.started_at >= settings.STACKS_FIRST_S

    def done(self, now: float) -> bool:
        """Whether nothing more is expected."""
        return not self.questions or now - self.started_at >= settings.STACKS_S


def ranks_to_dump(verdicts: Iterable[Verdict]) -> tuple[int, ...]:
    """Return the ranks whose stacks are wanted: culprits first, then victims."""
    said = tuple(verdicts)
    culprits = [culprit.rank for verdict in said for culprit in verdict.culprits]
    victims = [rank for verdict in said for rank in verdict.victims]
    return tuple(dict.fromkeys(culprits + victims))[: settings.STACK_RANKS_MAX]


def merge(dumps: Mapping[int, StackDump], verdict: Verdict) -> tuple[MergedStack, ...]:
    """Return the distinct stacks of the ranks of a verdict, those that tell most first."""
    culprits = {culprit.rank for culprit in verdict.culprits}
    wanted = culprits | set(verdict.victims)
    merged = [
        MergedStack(ranks=stack.ranks, thread=stack.thread, frames=stack.frames)
        for stack in classes(dumps[rank] for rank in sorted(wanted & dumps.keys()))
    ]
    merged.sort(key=lambda s: (_importance(s), not culprits & set(s.ranks), s.ranks))
    return tuple(merged[:MERGED_MAX])


def where(stacks: Iterable[MergedStack]) -> tuple[Gang, ...]:
    """Return who stands together by the main threads of merged stacks, the odd ones first."""
    return gangs({rank: place_of(s.frames) for s in stacks if s.thread == MAIN_THREAD for rank in s.ranks})


def main_tree(stacks: Iterable[MergedStack]) -> tuple[str, ...]:
    """Return the prefix tree of the main threads as lines of text, the ranks on the left."""
    return tuple(tree_lines(tree(s for s in stacks if s.thread == MAIN_THREAD)))


def failures(dumps: Mapping[int, StackDump]) -> tuple[tuple[int, str], ...]:
    """Return for which ranks there is no stack, and why."""
    return tuple((rank, dump.failure) for rank, dump in sorted(dumps.items()) if dump.failure)


def _importance(stack: MergedStack) -> int:
    if stack.thread == MAIN_THREAD:
        return 0
    if any("/torch/distributed/" in frame.file for frame in stack.frames):
        return 1  # it issues operations too
    return 2 if any(is_users_by_path(frame.file) for frame in stack.frames) else 3
