"""Collects the stacks and testimonies of a verdict, merges equal stacks, and says who stands where by them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ncclwatch.contract.model.rank import StackDump, StackFrame
from ncclwatch.contract.model.testimony import Communicator, Testimony
from ncclwatch.contract.model.verdict import MergedStack, Verdict
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch.contract.stacks.places import MAIN_THREAD, is_python, place_of, telling
from ncclwatch.contract.stacks.tree import Gang, classes, gangs, tree, tree_lines
from ncclwatch_server import limits
from ncclwatch_server.evidence.inspection import Question

MERGED_MAX = 32
NATIVE = f"{MAIN_THREAD} with native frames"
CHILD = "main of child process"


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
    needed: frozenset[int] = (
        frozenset()
    )  # culprits that cannot say themselves where they are, nor what they have issued
    opened: bool = False  # the verdicts have become incidents
    fresh: bool = False  # dumps came since the incidents were last updated
    then: tuple[int, ...] = ()  # ranks to ask once the first have answered
    deeply: tuple[int, ...] = ()  # ranks to ask for native frames and children as well
    patience_s: float = limits.STACKS_S

    def receive_stacks(self, dumps: Iterable[StackDump], question: Question) -> None:
        """Keep the dumps of an answer."""
        for dump in dumps:
            known = self.dumps.get(dump.rank)
            if known is None and len(self.dumps) >= limits.STACK_RANKS_MAX:
                continue
            if known is not None and known.threads and not dump.threads:
                continue  # a second look that failed takes nothing away from the first
            self.dumps[dump.rank] = dump
            self.fresh = True
        self.questions.discard(question)

    def receive_testimonies(
        self, testimonies: Iterable[Testimony], communicators: Iterable[Communicator], question: Question
    ) -> None:
        """Keep what other witnesses say in an answer."""
        for testimony in testimonies:
            if testimony.rank in self.testimonies or len(self.testimonies) < limits.STACK_RANKS_MAX:
                self.testimonies[testimony.rank] = testimony
                self.fresh = True
        # Each node's RAS may tell of the same communicators, in the same words.
        known = dict.fromkeys((*self.communicators, *communicators))
        self.communicators = tuple(known)[: limits.COMMUNICATORS_MAX]
        self.questions.discard(question)

    def lose(self, link: int) -> None:
        """Expect no answers of a connection that broke."""
        self.questions = {question for question in self.questions if question[0] != link}

    def ready(self, now: float) -> bool:
        """Whether the incidents must not wait any longer."""
        return not self.questions or now >= self.opens_by

    @property
    def opens_by(self) -> float:
        """When the incidents are opened at the latest: a wrong line is worse than one that comes later."""
        known = self.dumps.keys() & self.testimonies.keys()
        patience_s = limits.STACKS_FIRST_S if self.needed <= known else limits.STACKS_NEEDED_S
        return self.started_at + patience_s

    def next_round(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return whom to ask next, plainly and deeply; nobody while the incidents wait for the first round."""
        if not self.opened or not (self.then or self.deeply):
            return (), ()
        found = self.then, self.deeply
        self.patience_s = limits.STACKS_DEEP_S if self.deeply else limits.STACKS_S
        self.then = self.deeply = ()
        self.started_at = now
        return found

    def done(self, now: float) -> bool:
        """Whether nothing more is expected."""
        if self.then or self.deeply:
            return False
        return not self.questions or now - self.started_at >= self.patience_s


def merge(dumps: Mapping[int, StackDump], verdict: Verdict) -> tuple[MergedStack, ...]:
    """Return the distinct stacks of the ranks of a verdict, those that tell most first."""
    culprits = {culprit.rank for culprit in verdict.culprits}
    wanted = culprits | set(verdict.victims)
    merged = [
        MergedStack(ranks=stack.ranks, thread=stack.thread, frames=stack.frames)
        for stack in classes(dumps[rank] for rank in sorted(wanted & dumps.keys()))
    ]
    for rank in sorted(culprits & dumps.keys()):
        merged += deeper(dumps[rank])
    merged.sort(key=lambda s: (importance(s), not culprits & set(s.ranks), s.ranks))
    return tuple(merged[:MERGED_MAX])


def deeper(dump: StackDump) -> Iterator[MergedStack]:
    """Yield what a closer look at a suspect showed: native frames, and its children, equal ones together."""
    if dump.native:
        yield MergedStack(ranks=(dump.rank,), thread=NATIVE, frames=telling(dump.native))
    together: dict[tuple[StackFrame, ...], list[str]] = {}
    for child in dump.children:
        together.setdefault(child.frames, []).append(str(child.pid))
    for frames, pids in together.items():
        yield MergedStack(ranks=(dump.rank,), thread=f"{CHILD} {','.join(pids)}", frames=frames)


def where(stacks: Iterable[MergedStack]) -> tuple[Gang, ...]:
    """Return who stands together by the main threads of merged stacks, the odd ones first."""
    placed = [(s.ranks, place_of(s.frames)) for s in stacks if s.thread == MAIN_THREAD]
    return gangs({rank: place for ranks, place in placed for rank in ranks})


def main_tree(stacks: Iterable[MergedStack]) -> tuple[str, ...]:
    """Return the prefix tree of the main threads as lines of text, the ranks on the left."""
    return tuple(tree_lines(tree(s for s in stacks if s.thread == MAIN_THREAD)))


def failures(dumps: Mapping[int, StackDump]) -> tuple[tuple[int, str], ...]:
    """Return for which ranks there is no stack, and why."""
    return tuple((rank, dump.failure) for rank, dump in sorted(dumps.items()) if dump.failure)


def importance(stack: MergedStack) -> int:
    if stack.thread == MAIN_THREAD:
        return 0
    if stack.thread == NATIVE or (stack.thread.startswith(CHILD) and any(map(_is_users, stack.frames))):
        return 1  # a suspect, looked at closely
    if any("/torch/distributed/" in frame.file for frame in stack.frames):
        return 2  # it issues operations too
    return 3 if any(map(_is_users, stack.frames)) else 4


def _is_users(frame: StackFrame) -> bool:
    return is_python(frame) and is_users_by_path(frame.file)
