"""How long an incident waits for the stacks of its ranks."""

from ncclwatch.contract.model.rank import StackDump
from ncclwatch.contract.model.testimony import Testimony
from ncclwatch_server import limits
from ncclwatch_server.evidence.stack_collection import Gathering


def gathering(needed: frozenset[int]) -> Gathering:
    return Gathering(started_at=100.0, verdicts=[], judged_at=100.0, questions={(0, 1), (0, 2)}, needed=needed)


def test_an_incident_opens_without_stacks_that_are_late() -> None:
    waiting = gathering(frozenset())
    assert not waiting.ready(100.0 + limits.STACKS_FIRST_S - 0.01)
    assert waiting.ready(100.0 + limits.STACKS_FIRST_S)


def test_it_waits_longer_for_the_stack_and_the_witness_of_a_culprit_that_cannot_speak() -> None:
    waiting = gathering(frozenset((3,)))
    assert not waiting.ready(100.0 + limits.STACKS_NEEDED_S - 0.01)
    assert waiting.ready(100.0 + limits.STACKS_NEEDED_S)
    waiting.receive_stacks([StackDump(rank=3, failure="refused")], (0, 1))
    assert not waiting.ready(100.0 + limits.STACKS_NEEDED_S - 0.01)
    waiting.questions.add((0, 9))
    waiting.receive_testimonies([Testimony(rank=3, failure="no server")], (), (0, 2))
    assert waiting.ready(100.0 + limits.STACKS_FIRST_S)
