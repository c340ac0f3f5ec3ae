"""The command `ncclwatch notify`, contributed to the command line through an entry point."""

import asyncio
import sys
import time
from dataclasses import dataclass, replace

import click
import httpx

from ncclwatch.contract import config
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Severity, Verdict
from ncclwatch.contract.words.console import complain, put
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey
from ncclwatch_server.notify.channels import open_channel
from ncclwatch_server.notify.delivery import SEND_S
from ncclwatch_server.notify.message import Message
from ncclwatch_server.notify.posting import open_client
from ncclwatch_server.notify.stages import Stage
from ncclwatch_server.notify.targets import AnyTarget, read_targets

EXIT_UNDELIVERED = 1
EXIT_UNUSABLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one target took a test message."""

    name: str
    kind: str
    problem: str = ""
    took_s: float = 0.0

    def __str__(self) -> str:
        said = f"not delivered: {self.problem}" if self.problem else f"delivered in {self.took_s:.2f} s"
        return f"{self.name} ({self.kind}): {said}"


@click.group()
def notify() -> None:
    """Alerts: who is told of incidents."""


@notify.command()
@click.option("--notify", "path", default="", help=f"TOML file of the targets; else {config.ENV_NOTIFY} names it.")
@click.option("--target", "names", multiple=True, help="Only this one; may be given several times.")
def test(path: str, names: tuple[str, ...]) -> None:
    """Send a made-up incident and its end to all targets, and say how each took it.

    Exit code 0 when all of them took both, 1 when one did not, 2 when there is none or the file cannot be used.
    """
    try:
        targets = read_targets(path)
        unknown = set(names) - {target.name for target in targets.target}
        if unknown:
            raise NcclwatchError(f"there is no target {', '.join(sorted(unknown))} in that file")
        chosen = [target for target in targets.target if target.name in names or not names]
        if not chosen:
            raise NcclwatchError(f"no targets are named; give --notify FILE, or set {config.ENV_NOTIFY}")
        trials = asyncio.run(_try_all(chosen, targets.link))
    except NcclwatchError as error:
        complain(error)
        sys.exit(EXIT_UNUSABLE)
    for trial in trials:
        put(str(trial))
    sys.exit(EXIT_UNDELIVERED if any(trial.problem for trial in trials) else 0)


async def _try_all(targets: list[AnyTarget], base: str) -> list[Trial]:
    async with open_client() as client:
        return await asyncio.gather(*(_try_one(target, base, client) for target in targets))


async def _try_one(target: AnyTarget, base: str, client: httpx.AsyncClient) -> Trial:
    """Send first and end to one target, once each."""
    channel = open_channel(target, client)
    began = time.monotonic()
    for number, message in enumerate(messages(time.time(), base)):
        try:
            await asyncio.wait_for(channel.send(message), SEND_S)
        except asyncio.TimeoutError:
            return Trial(name=target.name, kind=target.kind, problem=f"no answer within {SEND_S:.0f} s")
        except NcclwatchError as error:
            which = "the end of the incident, " if number else ""
            return Trial(name=target.name, kind=target.kind, problem=f"{which}{error}")
    return Trial(name=target.name, kind=target.kind, took_s=time.monotonic() - began)


def messages(now: float, base: str) -> tuple[Message, Message]:
    """Return the first message and the end of a made-up incident."""
    site = CallSite(file="train.py", line=17, function="train")
    verdict = Verdict(
        cause=Cause.RANK_CONDITIONAL_COLLECTIVE,
        certainty=Certainty.PROVEN,
        severity=Severity.CRITICAL,
        summary="this is what an alert of ncclwatch looks like",
        explanation="It was sent by `ncclwatch notify test`.",
        advice="Nothing is to be done: no job hangs.",
        culprits=(Culprit(rank=1, host="node1", call_site=site, doing="in barrier"),),
        victims=(0, 2, 3),
        group="default",
        seq=53,
        op="all_reduce",
        onset_s=2.5,
        explained=(3, 3),
    )
    firing = Incident(
        id=f"test{int(now):x}",
        key=JobKey(name="test", instance="", attempt=0),
        job="ncclwatch-notify-test",
        world_size=4,
        state=IncidentState.OPEN,
        verdict=verdict,
        onset_to_open_s=2.5,
        opened_at=now,
    )
    over = replace(firing, state=IncidentState.RESOLVED, closed_at=now)
    first = Message(id=f"{firing.id}-1", stage=Stage.FIRING, incident=firing, at=now, base=base, test=True)
    return first, Message(id=f"{firing.id}-2", stage=Stage.RESOLVED, incident=over, at=now, base=base, test=True)


if __name__ == "__main__":
    notify()
