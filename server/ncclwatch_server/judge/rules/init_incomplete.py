"""The ranks of a job do not come together: some never came, came to another address, or stay away from a meeting."""

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Cause, Culprit, Severity
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import circle, named_apart, standstill
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit
from ncclwatch_server.judge.telling.words import at_line, wait_words, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.circles import Circle, Closed
from ncclwatch_server.judge.theory.roots import CircleRoot, NamedApartRoot, OutsideRoot, Root, ScatteredRoot, UnseenRoot
from ncclwatch_server.judge.theory.stillness import Trouble

CAUSE = Cause.INIT_INCOMPLETE
ADVICE = (
    "Check that the missing rank was started, and what it does before init_process_group. All ranks need the same "
    "MASTER_ADDR, MASTER_PORT and WORLD_SIZE, and must be able to reach that address."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a root in which ranks wait to be all together."""
    if isinstance(root, UnseenRoot):
        return _missing(case, root) if root.met is None else None
    if isinstance(root, ScatteredRoot):
        return _scattered(case, root)
    if isinstance(root, NamedApartRoot):
        return named_apart.tell(case, root, CAUSE)
    if isinstance(root, CircleRoot) and root.circle.note is None and root.circle.making:
        makes = root.circle.making[0].wait.kind is WaitKind.NEW_GROUP
        advice = named_apart.ADVICE if makes else ADVICE
        return circle.tell(case, root, CAUSE, reason=_meeting(root.circle), advice=advice)
    if isinstance(root, OutsideRoot) and root.still.trouble is Trouble.MEETING:
        return standstill.tell(case, root, CAUSE, advice=ADVICE)
    return None


def _meeting(found: Circle) -> str:
    wait = found.making[0].wait
    callers = ranks_words(wait.members) if wait.members else "all ranks of the job"
    if found.closed is Closed.MEETING_MISSED:
        away = ranks_words(found.guilty).capitalize()
        return f"{away} did not enter a call that {callers} have to make."
    also = "" if wait.members else ", also those that will not be in the group"
    return f"{callers[0].upper()}{callers[1:]} have to call {wait_words(wait)}{also}."


def _missing(case: Case, root: UnseenRoot) -> Explanation:
    lost = ranks_words(root.ranks)
    return Explanation(
        cause=CAUSE,
        severity=Severity.CRITICAL if root.one_node else Severity.WARNING,
        summary=f"{lost} never attached to this job; {waiting_words(case, root.blocks, root.ranks)}.",
        explanation=(
            f"No process of {lost} has attached to ncclwatch in this job, and nothing can go on "
            "without it: it was not started, died before attach(), or hangs before it."
        ),
        advice=ADVICE,
        culprits=tuple(Culprit(rank=rank, doing="never attached") for rank in root.ranks),
        victims=root.victims,
        evidence=tuple(block_evidence(block) for block in root.blocks[:16]),
    )


def _scattered(case: Case, root: ScatteredRoot) -> Explanation:
    sites = {block.rank: block.wait.site for block in reversed(root.blocks)}
    first = case.views[root.ranks[0]]
    addresses = ", ".join(f"{ranks_words(ranks)}: {end}" for end, ranks in root.addresses.items())
    usual = max(root.addresses, key=lambda end: len(root.addresses[end]))
    where = f"{first.endpoint}{at_line(sites.get(first.rank))}"
    verb = "uses" if len(root.ranks) == 1 else "use"
    return Explanation(
        cause=CAUSE,
        summary=(
            f"{ranks_words(root.ranks)} {verb} {where}, the other ranks {usual}; all need one MASTER_ADDR:MASTER_PORT."
            if root.decided
            else f"the ranks use different values of MASTER_ADDR:MASTER_PORT ({addresses})."
        ),
        explanation=f"init_process_group needs all ranks at one MASTER_ADDR and MASTER_PORT. Here: {addresses}.",
        advice=ADVICE,
        culprits=tuple(
            culprit(case.views[rank], sites.get(rank), f"in init_process_group at {case.views[rank].endpoint}")
            for rank in root.ranks
        ),
        victims=root.victims,
        one_of=not root.decided,
        evidence=tuple(block_evidence(block) for block in root.blocks[:16]),
    )


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise)
