"""How do values become HTML? Jinja with autoescape; what ranks send is stripped of what could deceive a reader."""

import unicodedata
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined
from markupsafe import Markup

from ncclwatch.contract.ownership import is_users_by_path
from ncclwatch.contract.stack_tree import short_path
from ncclwatch.contract.text import rank_list, ranks_words, seconds_words
from ncclwatch.contract.version import VERSION

RANKS_CHARS_MAX = 60

# Controls, formats (bidirectional overrides, zero-width), surrogates, private use: what they show is not what is there.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


def shown(text: str) -> str:
    """Return a text without characters that do not show or that turn others round. A newline or tab is a space."""
    if text.isascii() and text.isprintable():
        return text
    spaced = text.replace("\n", " ").replace("\t", " ")
    return "".join(c if unicodedata.category(c) not in _HIDDEN else "\N{REPLACEMENT CHARACTER}" for c in spaced)


def _finalize(value: object) -> object:
    """Clean all that a template shows; markup of our own passes."""
    return value if isinstance(value, Markup | int | float | Undefined) else shown(str(value))


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


def _segment(text: str) -> str:
    """Return a text as one part of a path, slashes and all."""
    return quote(text, safe="")


class Pages:
    """The templates."""

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
            ranks=_ranks, ranks_words=ranks_words, seconds=seconds_words, clock=_clock, day=_day, iso=_iso,
            number=_number, segment=_segment, short=short_path, users=is_users_by_path,
        )  # fmt: skip
        self._environment.globals.update(version=VERSION)

    def warm(self) -> None:
        """Compile all templates, so that nobody waits for it."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def render(self, template: str, **values: object) -> str:
        """Return a template with its values."""
        return self._environment.get_template(template).render(**values)


PAGES: Final = Pages()
