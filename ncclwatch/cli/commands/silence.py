"""The command `ncclwatch silence`: lets nobody be alerted of some jobs for some time."""

import getpass
import re
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote

import click
import msgspec

from ncclwatch.cli.client.http import Client, dial
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.undecodable import UNDECODABLE
from ncclwatch.contract.words.console import complain, put, put_json

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PATH = "/api/v1/silences"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A silence, as the server lists it."""

    id: str
    job: str
    state: str
    starts_at: datetime
    ends_at: datetime
    reason: str = ""
    author: str = ""  # as the token says that made it
    signed: str = ""  # what its maker wrote, which may be anything


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSilence:
    """What the server is asked to make."""

    job: str
    lasts_s: float | None
    starts_at: datetime | None
    ends_at: datetime | None
    reason: str
    signed: str


class Span(click.ParamType[float]):
    """A length of time, as people type it."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds: "90s", "30m", "2h", "1d12h"."""
        text = str(value).strip().lower()
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if not parts or "".join(number + unit for number, unit in parts) != text or seconds <= 0:
            self.fail(f"{value!r} is no length of time; write 90s, 30m, 2h, 1d12h", param, ctx)
        return seconds


class Moment(click.ParamType[datetime]):
    """A point in time; without an offset it is meant in this machine's time zone."""

    name = "WHEN"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time: "2026-11-30T22:00", "2026-11-30 22:00+01:00", "2026-11-30T21:00Z"."""
        try:
            return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", str(value).strip())).astimezone()
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time; write 2026-11-30T22:00, with an offset such as +01:00 if you like", param, ctx
            )


_server = click.option(
    "--server", default="", help="URL of the server; else NCCLWATCH_SERVER, else port 8470 of the master."
)


@click.group()
def silence() -> None:
    """Alert nobody of some jobs for some time: while you look at one, or in a maintenance window."""


@silence.command()
@click.argument("job")
@click.option("--for", "lasts_s", type=Span(), help="How long: 30m, 2h, 1d.")
@click.option("--from", "starts_at", type=Moment(), help="When it begins; default now.")
@click.option("--until", "ends_at", type=Moment(), help="When it ends.")
@click.option("--reason", default="", help="For those who read the list.")
@_server
def add(
    job: str, lasts_s: float | None, starts_at: datetime | None, ends_at: datetime | None, reason: str, server: str
) -> None:
    """Make a silence for JOB: a name, or a pattern such as 'prod-*'. What still hangs when it ends is told then."""
    if (lasts_s is None) == (ends_at is None):
        raise click.UsageError("say how long: either --for or --until")
    new = NewSilence(
        job=job, lasts_s=lasts_s, starts_at=starts_at, ends_at=ends_at, reason=reason, signed=_signature()
    )  # fmt: skip
    made = _ask(server, lambda client: _one(client.fetch(_PATH, msgspec.json.encode(new))))
    put(_line(made))


@silence.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are over.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@_server
def list_(everything: bool, as_json: bool, server: str) -> None:
    """List the silences."""
    data = _ask(server, lambda client: client.fetch(_PATH))
    if as_json:
        put_json(data)
        return
    found = msgspec.json.decode(data, type=tuple[Silence, ...])
    put(*_table([each for each in found if everything or each.state != "expired"]))


@silence.command()
@click.argument("ids", nargs=-1, required=True)
@_server
def remove(ids: tuple[str, ...], server: str) -> None:
    """End silences now, by their IDS."""
    for name in ids:
        put(_line(_end(server, f"{_PATH}/{quote(name, safe='')}")))


def _end(server: str, path: str) -> Silence:
    return _ask(server, lambda client: _one(client.fetch(path, method="DELETE")))


def _ask(server: str, question: Callable[[Client], _T]) -> _T:
    try:
        return question(dial(server))
    except (NcclwatchError, *UNDECODABLE) as error:
        complain(error)
        sys.exit(2)


def _one(data: bytes) -> Silence:
    return msgspec.json.decode(data, type=Silence)


def _table(silences: Sequence[Silence]) -> list[str]:
    return [_line(each) for each in silences] or ["no silences"]


def _line(each: Silence) -> str:
    begins, ends = each.starts_at.astimezone(), each.ends_at.astimezone()
    span = f"{begins:%Y-%m-%d %H:%M} to {ends:{'%H:%M' if begins.date() == ends.date() else '%Y-%m-%d %H:%M'}}"
    maker = f"by {each.author}" if each.author else ""
    words = ", ".join(word for word in (maker, f"signed {each.signed}" if each.signed else "", each.reason) if word)
    return f"{each.id}  {each.state:<7}  {span}  {each.job}" + (f"  ({words})" if words else "")


def _signature() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"[:200]
    except (OSError, KeyError):  # no entry in the password file, as in some containers
        return socket.gethostname()[:200]
