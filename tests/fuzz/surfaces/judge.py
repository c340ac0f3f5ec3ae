"""Views of all ranks of a job: the judge answers whatever they say, and proves nothing by what contradicts itself.

An input is a message of views, as it travels.
"""

import random
from collections.abc import Hashable, Mapping
from pathlib import Path

import msgspec

from ncclwatch.contract import wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Certainty, Severity, Verdict
from ncclwatch.contract.words.printable import harmless
from ncclwatch_server.judge import judge
from tests.fuzz import mutation
from tests.fuzz.engine import Broken, Surface
from tests.scenarios.texts import FILES, situation

WORLD, SCENARIOS = 4, 40


def check(data: bytes) -> Hashable:
    """Decode views and judge them."""
    try:
        message = wire.decode_from_agent(data)
    except WireError as error:
        return str(error)[:80]
    if not isinstance(message, wire.Views):
        return type(message).__name__
    views = {view.rank: view for view in message.ranks if 0 <= view.rank < WORLD}
    verdicts = judge(JobSnapshot(job="j", world_size=WORLD, ranks=views, stacks={}, silent={}, absent_s=60.0))
    for verdict in verdicts:
        is_sound(verdict, WORLD)
    if views and all(map(contradicts_itself, views.values())):
        proves_nothing(verdicts)
    return tuple((each.severity.value, each.cause.value, each.certainty.value, each.one_of) for each in verdicts)


def is_sound(verdict: Verdict, world_size: int) -> None:
    """Ranks are ranks of the job, and whatever is said can be sent on and shown."""
    ranks = {*verdict.victims, *(culprit.rank for culprit in verdict.culprits)}
    if any(not 0 <= rank < world_size for rank in ranks):
        raise Broken(f"a verdict names ranks that are none: {sorted(ranks)[:9]}")
    msgspec.json.decode(msgspec.json.encode(verdict))
    if not harmless(verdict.summary).isprintable():
        raise Broken(f"a summary that no terminal can show: {verdict.summary!r}")


def contradicts_itself(view: RankView) -> bool:
    """Whether a rank has completed more than it issued in each of its groups."""
    return bool(view.groups) and all(group.completed > group.enqueued for group in view.groups)


def proves_nothing(verdicts: tuple[Verdict, ...]) -> None:
    """No hang is proven. How ranks ended is known from outside."""
    for verdict in verdicts:
        if verdict.certainty is Certainty.PROVEN and verdict.severity is Severity.CRITICAL and not verdict.about:
            raise Broken(f"proven by ranks that contradict themselves: {verdict.cause.value}: {verdict.summary}")


def views_of(path: Path) -> Mapping[int, RankView]:
    """Return the ranks of a scenario."""
    return situation(path.read_text().partition("----\n")[0]).snapshot().ranks


def scenarios_of_four(count: int) -> list[Mapping[int, RankView]]:
    """Return some scenarios of four ranks."""
    small = [
        found for path in FILES if path.stat().st_size < 4000 and set(found := views_of(path)) == set(range(WORLD))
    ]
    return random.Random(14).sample(small, count)


SURFACE = Surface(
    name="judge",
    seeds=tuple(
        wire.encode(wire.Views(index=0, ranks=tuple(views.values()))) for views in scenarios_of_four(SCENARIOS)
    ),
    mutate=mutation.of_json,
    check=check,
)
