"""The command `ncclwatch simulate`, contributed to the command line through an entry point."""

import asyncio
import json
import math
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from urllib.parse import quote

import click

from ncclwatch.contract import job_names
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.network import tls, tokens, urls
from ncclwatch.contract.network.direct_http import DirectHttp
from ncclwatch.contract.words.console import complain, put, put_json, rewrite
from ncclwatch_server.simulation.job.faults import RIGHT_CAUSES, FaultKind
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.step_times import Slow
from ncclwatch_server.simulation.job.timeline import Manner, Timeline, plan
from ncclwatch_server.simulation.nodes import Nodes, NoServer
from ncclwatch_server.simulation.offline import heard_offline

EXIT_WRONG, EXIT_UNUSABLE = 1, 2
RANKS_MAX = 100_000
_POLL_S = 0.5
_ASK_S = 10.0
SLOW_S = 60.0  # in which a slow rank is to be found


class Unusable(NcclwatchError):
    """Such a job cannot be simulated."""


class _Wrong(click.ParamType[FaultKind | Slow]):
    """A kind of fault, or a slow rank."""

    name = "fault"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> FaultKind | Slow:
        """Return what was asked for; refuses with a sentence what there is not."""
        text = str(value)
        try:
            return Slow.parse(text) if text.split(":")[0] == "slow" else FaultKind(text)
        except ValueError as error:
            kinds = ", ".join(kind.value for kind in FaultKind)
            self.fail(str(error) if text.startswith("slow") else f"{text!r} is none of {kinds} or slow:WHY:SHARE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was simulated, and what was said of it. Times are seconds."""

    job: str
    ranks: int
    nodes: int
    layout: str
    fault: str  # "" in a healthy job
    rank: int  # that makes it, -1: none does
    right: bool
    said: str  # the summary of the first verdict that is critical or calls ranks slow, "" if there was none
    culprits: tuple[int, ...]
    onset_to_verdict_s: float | None
    digests: int
    late_s: float  # the most that a digest was late because this process was too slow
    wall_s: float


@click.command()
@click.option("--ranks", type=click.IntRange(1), help="How many ranks; default: as the layout says, else 64.")
@click.option("--layout", "layout_text", help='For example "tp=8,pp=4,dp=32,ep=8"; default: data parallel only.')
@click.option(
    "--fault",
    type=_Wrong(),
    metavar="KIND",
    help=f"What goes wrong: {', '.join(kind.value for kind in FaultKind)}, or slow:WHY:SHARE, a rank that works "
    "longer by this share of a step (slow:data_loading:0.2); default: nothing.",
)
@click.option("--after", "healthy_s", type=click.FloatRange(1.0), default=20.0, help="Seconds until it does (20).")
@click.option(
    "--for",
    "lasts_s",
    type=click.FloatRange(1.0),
    help="Seconds of the job. Default: 60, and with --server until the verdict.",
)
@click.option(
    "--step", "step_s", type=click.FloatRange(0.05), default=1.0, help="Median seconds of a training step (1)."
)
@click.option("--seed", type=int, default=0, help="Another seed, another job (0).")
@click.option(
    "--server", help="Report to this server over its WebSocket, in real time; default: none, faster than real time."
)
@click.option("--job", default="", help="Name of the job; default: simulated-SEED.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def simulate(  # noqa: PLR0913 - one argument for each option
    ranks: int | None,
    layout_text: str | None,
    fault: FaultKind | Slow | None,
    healthy_s: float,
    lasts_s: float | None,
    step_s: float,
    seed: int,
    server: str | None,
    job: str,
    as_json: bool,
) -> None:
    """Pretend to be a training job of up to 100,000 ranks, and see what ncclwatch says of it.

    Steps vary in length, all ranks pause together now and then, and nodes report at moments of their own. With
    --server each node (8 ranks) has a connection of its own to a real server, reports once a second and answers what
    it is asked; without, the same job goes through the judge in this process, as fast as it can.

    Exit code 0 when the verdict names the right rank and cause, or a healthy job had none; 1 when not; 2 when the job
    cannot be simulated.
    """
    try:
        layout = _layout(ranks, layout_text)
        kind = fault if isinstance(fault, FaultKind) else None
        slow = replace(fault, since_s=healthy_s) if isinstance(fault, Slow) else None
        if fault is not None and lasts_s is not None and lasts_s <= healthy_s:
            raise Unusable(f"--for {lasts_s:g} ends the job before its fault, after {healthy_s:g} s (--after)")
        stays = lasts_s is not None  # also after the verdict, so that it can be looked at
        shortest_s = 60.0 if fault is None else max(60.0, healthy_s + (15.0 if kind else SLOW_S))
        lasts_s = lasts_s if lasts_s is not None else shortest_s + (30.0 if server else 0.0)
        healthy_s = healthy_s if kind is not None else lasts_s
        timeline = _plan(layout, kind, slow, healthy_s, step_s, seed)
        name = job_names.canonical(job or f"simulated-{seed}")
        tell = _Telling(quiet=as_json or not sys.stderr.isatty())
        tell(f"working out where {layout.world_size:,} ranks stand ...")
        timeline.prepare()
        outcome = (
            asyncio.run(_online(timeline, name, server, lasts_s, tell, stays=stays))
            if server
            else _offline(timeline, name, lasts_s, tell)
        )
        tell("")
    except NcclwatchError as error:
        complain(error)
        sys.exit(EXIT_UNUSABLE)
    except KeyboardInterrupt:
        sys.exit(130)
    if as_json:
        put_json(json.dumps(asdict(outcome)).encode())
    else:
        put(*_words(outcome).split("\n"))
    sys.exit(0 if outcome.right else EXIT_WRONG)


class _Telling:
    """One line of progress on the terminal, written over."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, text: str) -> None:
        if not self._quiet:
            rewrite(text)


def _layout(ranks: int | None, text: str | None) -> Layout:
    try:
        layout = Layout.parse(text or f"dp={ranks or 64}")
    except ValueError as error:
        raise Unusable(str(error)) from error
    if layout.world_size > RANKS_MAX:
        raise Unusable(
            f"a job of {layout.world_size:,} ranks is too large to simulate; name at most {RANKS_MAX:,} ranks"
        )
    if ranks is not None and layout.world_size != ranks:
        raise Unusable(
            f"--layout {text} is a job of {layout.world_size} ranks (tp x pp x dp) and --ranks says {ranks}; "
            "leave one of them out"
        )
    return layout


def _plan(
    layout: Layout, kind: FaultKind | None, slow: Slow | None, healthy_s: float, step_s: float, seed: int
) -> Timeline:
    try:
        return plan(layout, Manner(step_s=step_s), kind, healthy_s=healthy_s, seed=seed, slow=slow)
    except ValueError as error:
        raise Unusable(f"{error}; choose another --fault or --layout") from error


def _offline(timeline: Timeline, job: str, lasts_s: float, tell: _Telling) -> Outcome:
    found = heard_offline(timeline, lasts_s, lambda now: tell(f"second {now:.0f} of {lasts_s:.0f}"))
    verdict = found.verdict
    culprits = tuple(culprit.rank for culprit in verdict.culprits) if verdict else ()
    said = "" if verdict is None else verdict.slowness.kind.value if verdict.slowness else verdict.cause.value
    right = _is_right(timeline, culprits, said, found.after_s)
    return Outcome(
        job=job, ranks=timeline.layout.world_size, nodes=_nodes(timeline), layout=str(timeline.layout), right=right,
        fault=_wrong(timeline)[0], rank=_wrong(timeline)[1],
        said=verdict.summary if verdict else "", culprits=culprits, digests=int(found.simulated_s) * _nodes(timeline),
        onset_to_verdict_s=round(found.after_s, 2) if verdict and _wrong(timeline)[0] else None,
        late_s=0.0, wall_s=round(found.took_s, 2),
    )  # fmt: skip


def _nodes(timeline: Timeline) -> int:
    return -(-timeline.layout.world_size // timeline.layout.node)


def _wrong(timeline: Timeline) -> tuple[str, int]:
    """Return what goes wrong in a job, and which rank does."""
    if timeline.slow is not None:
        return f"slow:{timeline.slow.kind.value}:{timeline.slow.share:g}", timeline.slow.rank
    return (timeline.fault.kind.value, timeline.fault.rank) if timeline.fault is not None else ("", -1)


def _is_right(timeline: Timeline, culprits: tuple[int, ...], cause: str, after_s: float) -> bool:
    """Whether this is the rank that is to blame, and why: `cause`, or the kind of a slowness."""
    fault, slow = timeline.fault, timeline.slow
    if slow is not None:
        return culprits == (slow.rank,) and after_s >= 0.0 and cause == slow.kind.value
    if fault is None or not culprits:
        return fault is None and not culprits
    return culprits == (fault.rank,) and after_s >= 0.0 and cause in {each.value for each in RIGHT_CAUSES[fault.kind]}


async def _online(timeline: Timeline, job: str, server: str, lasts_s: float, tell: _Telling, *, stays: bool) -> Outcome:
    urls.check(server, "--server")
    url = server if "://" in server else f"http://{server}"
    token = tokens.shown_by_reader()
    nodes = Nodes(timeline=timeline, job=job, url=url, token=tokens.shown_by_agent(), seed=timeline.seed)
    await nodes.connect(lambda count: tell(f"{count:,} of {nodes.count:,} nodes connected"))
    over, began = asyncio.Event(), time.monotonic()
    running = asyncio.create_task(nodes.run(over))
    found: Mapping[str, object] | None = None
    after_s: float | None = None
    try:
        while not running.done() and (found is None or stays) and time.monotonic() - began < lasts_s:
            await asyncio.wait([running], timeout=_POLL_S)
            now_s = time.monotonic() - nodes.began
            tell(f"second {now_s:.0f} of {lasts_s:.0f}, {nodes.traffic.digests:,} digests sent")
            if found is not None:
                continue
            found = await asyncio.to_thread(_worst, url, token, job)
            after_s = now_s - (timeline.slow.since_s if timeline.slow is not None else timeline.onset_s)
    finally:
        over.set()
        await running
    culprits = tuple(each["rank"] for each in found["culprits"]) if found else ()  # type: ignore[attr-defined]
    told_s = after_s if found else None
    if found and after_s is not None and timeline.slow is None:
        told_s = min(after_s, float(found["onset_to_open_s"]))  # type: ignore[arg-type]
    return Outcome(
        job=job, ranks=timeline.layout.world_size, nodes=nodes.count, layout=str(timeline.layout),
        fault=_wrong(timeline)[0], rank=_wrong(timeline)[1],
        right=_is_right(timeline, culprits, _why(found) if found else "", after_s or 0.0),
        said=str(found["summary"]) if found else "", culprits=culprits, digests=nodes.traffic.digests,
        onset_to_verdict_s=round(told_s, 2) if told_s is not None and _wrong(timeline)[0] else None,
        late_s=round(nodes.traffic.late_s, 3), wall_s=round(time.monotonic() - began, 2),
    )  # fmt: skip


def _why(incident: Mapping[str, object]) -> str:
    slowness = incident.get("slowness")
    return str(slowness["kind"] if isinstance(slowness, dict) else incident["cause"])


def _worst(url: str, token: str, job: str) -> Mapping[str, object] | None:
    """Return the first critical incident of the job that the server knows, or the first of a slow rank."""
    request = urllib.request.Request(f"{url.rstrip('/')}/api/v1/jobs/{quote(job, safe='')}/report")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        handlers: list[urllib.request.BaseHandler] = [DirectHttp(), urllib.request.ProxyHandler({})]
        if tls.is_secure(url):
            handlers.append(urllib.request.HTTPSHandler(context=tls.trust()))
        with urllib.request.build_opener(*handlers).open(request, timeout=_ASK_S) as answer:
            incidents: list[Mapping[str, object]] = json.load(answer)["incidents"]
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            return None  # no tick has seen it yet
        raise NoServer(f"{request.full_url} answered {error.code}; is this an ncclwatch server?") from error
    except (OSError, ValueError, KeyError) as error:
        raise NoServer(f"{request.full_url} could not be read ({error})") from error
    slow = [each for each in incidents if each.get("slowness") and each["culprits"]]
    critical = [each for each in incidents if each["severity"] == "critical"]
    return next(reversed(critical or slow), None)


def _words(outcome: Outcome) -> str:
    made = f"rank {outcome.rank}: {outcome.fault}" if outcome.fault else "nothing"
    lines = [
        f"simulated  {outcome.ranks:,} ranks on {outcome.nodes:,} nodes ({outcome.layout}), {outcome.wall_s:.1f} s, "
        f"{outcome.digests:,} digests",
        f"wrong      {made}",
        f"said       {outcome.said or 'nothing'}",
    ]
    if outcome.onset_to_verdict_s is not None and math.isfinite(outcome.onset_to_verdict_s):
        lines.append(f"after      {outcome.onset_to_verdict_s:.1f} s")
    if outcome.late_s > 1.0:
        lines.append(
            f"note       digests were up to {outcome.late_s:.1f} s late: this machine is too slow for so many nodes"
        )
    return "\n".join([*lines, f"verdict    {'right' if outcome.right else 'WRONG'}"])
