"""Turns values into HTML: Jinja with autoescape; of what ranks send, what could deceive a reader is spelt out."""

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined
from markupsafe import Markup, escape

from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch.contract.stacks.tree import short_path
from ncclwatch.contract.version import VERSION
from ncclwatch.contract.words.aftermath import hours_words, time_words
from ncclwatch.contract.words.printable import harmless, one_line
from ncclwatch.contract.words.repairs import deed_words, reference_words
from ncclwatch.contract.words.text import group_words, rank_list, ranks_words, seconds_words
from ncclwatch_server.incidents import aftermath
from ncclwatch_server.incidents.book import Incident

RANKS_CHARS_MAX = 60


def _finalize(value: object) -> object:
    """Clean all that a template shows; markup of our own passes."""
    return value if isinstance(value, Markup | int | float | Undefined) else one_line(str(value))


def _lines(text: str) -> Markup:
    """Return a text of several lines, for an element that shows them."""
    return escape(harmless(text, keep_lines=True))


def _ranks(ranks: Iterable[int]) -> str:
    """Return ranks for people, no longer than a line."""
    found = tuple(ranks)
    text = rank_list(found)
    if len(text) <= RANKS_CHARS_MAX:
        return text
    return f"{text[:RANKS_CHARS_MAX].rpartition(',')[0]}, … ({len(found):,} in all)"


def _clock(at: float | None) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%H:%M:%S") if at is not None else ""


def _day(at: float | None) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC") if at is not None else ""


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")


def _number(value: float) -> str:
    return f"{value:,}"


def _age(age_s: float) -> str:
    """Return how long something has lasted, in the unit that fits."""
    for unit, seconds in (("d", 86_400), ("h", 3600), ("min", 60)):
        if age_s >= (2 if unit != "min" else 1) * seconds:
            return f"{age_s / seconds:.0f} {unit}"
    return "< 1 min"


def _lasted(incident: Incident, now: float) -> str:
    """Return for how long an incident has been or was open."""
    if incident.closed_at is None:
        return _age(now - incident.opened_at)
    lasted_s = incident.closed_at - incident.opened_at
    return seconds_words(lasted_s) if lasted_s < 60 else _age(lasted_s)


def _segment(text: str) -> str:
    """Return a text as one part of a path, slashes and all."""
    return quote(text, safe="")


class Pages:
    """The templates, each compiled when it is shown first: most servers are never looked at."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("ncclwatch_server.ui"),
            autoescape=True,
            finalize=_finalize,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            lines=_lines, ranks=_ranks, ranks_words=ranks_words, group_words=group_words, seconds=seconds_words,
            clock=_clock, day=_day, iso=_iso, number=_number, age=_age, lasted=_lasted, segment=_segment,
            short=short_path, users=is_users_by_path, deed=deed_words, reference=reference_words,
            aftermath=aftermath.words, cost=aftermath.cost, hours=hours_words, time_words=time_words,
        )  # fmt: skip
        self._environment.globals.update(version=VERSION)

    def render(self, template: str, **values: object) -> str:
        """Return a template with its values."""
        return self._environment.get_template(template).render(**values)


PAGES: Final = Pages()
