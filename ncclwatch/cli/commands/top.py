"""The command `ncclwatch top`: shows how the jobs are doing, from second to second."""

import itertools
import time
from typing import TYPE_CHECKING

import click
import msgspec

from ncclwatch.cli.client.answers import Incident, Job
from ncclwatch.cli.client.http import Client, ServerUnreachable
from ncclwatch.cli.commands.asking import complete_job, connect, json_option, server_option
from ncclwatch.cli.commands.status import ask, decoded
from ncclwatch.contract.words.console import put_json, wants_json
from ncclwatch.contract.words.text import seconds_words

if TYPE_CHECKING:
    from rich.console import RenderableType

RATE_OVER_S = 10.0  # steps per second are counted over the last of it


class Rates:
    """How fast jobs step, by what was seen of them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], list[tuple[float, int]]] = {}

    def see(self, jobs: tuple[Job, ...], now: float) -> dict[str, float]:
        """Note the steps of this moment; return steps per second of the jobs that were seen before."""
        found = {}
        known, self._seen = self._seen, {}
        for job in jobs:
            seen = [*known.get((job.id, job.attempt), []), (now, job.steps)]
            # One that is older than the span is kept, so that the span is always covered.
            while len(seen) > 2 and now - seen[1][0] >= RATE_OVER_S:
                del seen[0]
            self._seen[job.id, job.attempt] = seen
            (then, before), (last, steps) = seen[0], seen[-1]
            if last > then and steps >= before and job.state != "ended":
                found[job.id] = (steps - before) / (last - then)
        return found


class Picture:
    """What is shown: the last answer, and since when there is none."""

    def __init__(self, client: Client, job: str) -> None:
        self._client = client
        self._job = job
        self._rates = Rates()
        self._answered_at: float | None = None
        self.jobs: tuple[Job, ...] = ()
        self.incidents: tuple[Incident, ...] = ()
        self.rates: dict[str, float] = {}
        self.trouble = ""

    def renew(self, now: float) -> None:
        """Ask once. A server that does not answer leaves the last picture, and is told of."""
        try:
            found = ask(self._client, self._job)
            self.jobs, self.incidents = decoded(found)
        except ServerUnreachable as error:
            since = "" if self._answered_at is None else f" This is {seconds_words(now - self._answered_at)} old."
            self.trouble = f"{error}.{since}"
            return
        self.trouble, self._answered_at = "", now
        self.rates = self._rates.see(self.jobs, now)

    def render(self) -> "RenderableType":
        """Return it for a terminal."""
        from rich.console import Group

        from ncclwatch.cli.output.job_table import incident_lines, job_lines, job_table, worst_first
        from ncclwatch.cli.output.terminal import said

        parts: list[RenderableType] = [
            said(f"ncclwatch {self._client.url}  {time.strftime('%H:%M:%S')}  Ctrl-C ends", "dim")
        ]
        if self.trouble:
            parts.append(said(self.trouble, "bold red"))
        if self.incidents:
            # What is wrong comes before what is listed: a short terminal cuts the end.
            parts += ["", *incident_lines(self.incidents)]
        parts += ["", job_table(self.jobs, self.rates) if self.jobs else said("no job reports to this server yet")]
        parts += [line for job in worst_first(self.jobs) for line in job_lines(job)]
        return Group(*parts)


@click.command()
@click.argument("job", default="", shell_complete=complete_job)
@click.option("--interval", type=click.FloatRange(0.2, 3600.0), default=1.0, show_default=True, help="Seconds between.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many pictures.")
@server_option
@json_option
def top(job: str, interval: float, count: int | None, server: str, as_json: bool | None) -> None:
    """Show the jobs and open incidents of a server, live, or those of one JOB. Ctrl-C ends it.

    Without a terminal: one line of JSON for each picture, as `status --json` has it.
    """
    client = connect(server)
    pictures = range(count) if count is not None else itertools.count()
    if wants_json(as_json):
        for number in pictures:
            time.sleep(interval if number else 0.0)
            put_json(msgspec.json.encode(ask(client, job)), indent=0)
        return
    _show(Picture(client, job), interval, pictures)


def _show(picture: Picture, interval_s: float, pictures: "range | itertools.count[int]") -> None:
    from rich.live import Live

    from ncclwatch.cli.output.terminal import console

    shown = console()
    if not shown.is_terminal:  # what was written cannot be written over
        for number in pictures:
            time.sleep(interval_s if number else 0.0)
            picture.renew(time.monotonic())
            shown.print(picture.render())
        return
    picture.renew(time.monotonic())
    live = Live(picture.render(), console=shown, auto_refresh=False, screen=True)
    try:
        with live:
            for number in pictures:
                if number:
                    time.sleep(interval_s)
                    picture.renew(time.monotonic())
                live.update(picture.render(), refresh=True)
    except KeyboardInterrupt:
        pass  # the way to end it
    shown.print(picture.render())  # the other screen has taken its own with it
