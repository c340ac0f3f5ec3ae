"""Tells a situation that goes on to a server, second by second, and writes down what the server shows meanwhile."""

import asyncio
import re

from ncclwatch.contract.model.verdict import Severity
from tests.scenarios.heard import Telling
from tests.scenarios.situation import Situation
from tests.scenarios.situation.passing import pass_time
from tests.scenarios.texts import render

DIGEST_S = 1.0
AS_BEFORE = "as before\n"
_AFTER = re.compile(r"^after (\d+) s:\n", re.MULTILINE)


def told(given: str) -> str:
    """Return what a server shows at each moment of a story: of each incident its life, and waits that are no hang."""
    first, *rest = _AFTER.split(given)
    situation = Situation()
    _carry_out(situation, first)
    return asyncio.run(_tell(situation, list(zip(map(int, rest[::2]), rest[1::2], strict=True))))


async def _tell(situation: Situation, parts: list[tuple[int, str]]) -> str:
    telling = Telling(situation.snapshot(), 0)
    for node in telling.nodes:
        node.announce()
    telling.clock_s += situation.known_s
    await telling.look()
    shown, before = ["at first:\n" + _shown(telling)], _shown(telling)
    for seconds, news in parts:
        for second in range(seconds):
            pass_time(situation, DIGEST_S)
            telling.clock_s += DIGEST_S
            _carry_out(situation, news if second == seconds - 1 else "")
            telling.is_now(situation.snapshot())
            await telling.look()
        now = _shown(telling)
        shown.append(f"after {seconds} s:\n" + (now if now != before else AS_BEFORE))
        before = now
    return "".join(shown)


def _carry_out(situation: Situation, commands: str) -> None:
    for line in commands.splitlines():
        if line.strip() and not line.startswith("#"):
            situation.run(line)


def _shown(telling: Telling) -> str:
    lines = [f"{incident.state.value}: {render((incident.verdict,))}" for incident in telling.watch.book.all()]
    waits = telling.job.waiting if not lines else ()
    lines += [f"shown: {render((verdict,))}" for verdict in waits if verdict.severity is Severity.INFO]
    return "".join(lines) or "nothing\n"
