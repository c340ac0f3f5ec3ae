"""Shows with which settings this server runs, and whether it is well. No secret is among them."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ncclwatch.contract import config
from ncclwatch.contract.version import VERSION
from ncclwatch.contract.words.text import bytes_words, seconds_words
from ncclwatch_server import limits
from ncclwatch_server.security.scopes import Grant
from ncclwatch_server.settings import Settings
from ncclwatch_server.store.health import MEMORY, StoreHealth
from ncclwatch_server.ui.board import Board
from ncclwatch_server.watch.tick import Watch

_STARTED = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One setting or figure."""

    name: str
    value: str
    well: bool = True


def effective(given: Settings) -> tuple[Line, ...]:
    """Return what the command line decided. Of a secret only whether it is set."""
    return (
        Line(name="version", value=VERSION),
        Line(name="protocol of agents", value=str(config.PROTOCOL)),
        Line(name="python", value=sys.version.split()[0]),
        Line(name="store", value=_database(given.store) if given.store else "none: incidents are kept in memory"),
        Line(name="closed incidents are kept for", value=f"{given.keeping.days:g} days"),
        Line(name="closed incidents of one job that are kept", value=f"{given.keeping.incidents_per_job:,}"),
        Line(name="tokens", value=_tokens(given.grants)),
        Line(name="logs", value=given.log_url or "no links: --log-url gives a template"),
        Line(name="answers to the names", value=_names(given.hosts)),
    )


def limits_in_force() -> tuple[Line, ...]:
    """Return the limits and rhythms, by name."""
    return tuple(
        Line(name=name, value=f"{value:,}" if isinstance(value, int) else f"{value:g}")
        for name, value in vars(limits).items()
        if name.isupper() and isinstance(value, int | float)
    )


def health(watch: Watch, board: Board, store: StoreHealth) -> tuple[Line, ...]:
    """Return how this server is doing. In the event loop."""
    return (*_health(watch, board), *_store(store))


def _health(watch: Watch, board: Board) -> Iterator[Line]:
    counters = watch.counters
    yield Line(name="running for", value=_age(time.monotonic() - _STARTED))
    yield Line(name="agents connected", value=f"{watch.agents:,}")
    yield Line(name="jobs", value=f"{len(watch.jobs.listed()):,}")
    yield Line(name="digests taken", value=f"{counters.digests:,}")
    refused = sum(counters.refused_at.values())
    yield Line(name="connections refused", value=f"{refused:,}", well=not refused)
    tick_ms = 1e3 * counters.tick_s / max(1, counters.ticks)
    yield Line(name="work of a tick, mean", value=f"{tick_ms:.1f} ms", well=tick_ms < 500)
    yield Line(name="event loop late, worst of a minute", value=f"{board.lag_s * 1e3:.0f} ms", well=board.lag_s < 0.25)
    yield Line(name="judgements", value=f"{counters.judgements:,}")
    yield Line(name="judgements that failed", value=f"{counters.judge_failures:,}", well=not counters.judge_failures)
    yield Line(name="looks at a job that failed", value=f"{counters.look_failures:,}", well=not counters.look_failures)
    yield Line(
        name="incidents beyond the limit of open ones", value=f"{watch.book.refused:,}", well=not watch.book.refused
    )
    yield Line(name="open job pages", value=str(board.viewers))
    yield Line(name="listeners to the stream of verdicts", value=str(watch.announcements.listeners))
    yield Line(name="memory", value=bytes_words(_resident()))


def _store(store: StoreHealth) -> Iterator[Line]:
    working = "works" if store.place != MEMORY else "there is none"
    failing = f"fails for {seconds_words(store.failing_s)}: {store.problem}"
    yield Line(name="the store", value=working if store.working else failing, well=store.working)
    yield Line(name="waiting to be stored", value=f"{store.waiting:,}", well=store.working)
    yield Line(name="writes that the store refused", value=f"{store.failures:,}", well=not store.failures)
    yield Line(name="incidents that could not be stored", value=f"{store.not_stored:,}", well=not store.not_stored)


def _tokens(grants: Iterable[Grant]) -> str:
    """Return how many tokens there are, and what they are good for; never one of them, nor whose it is."""
    kinds = Counter(" and ".join(sorted(scope.value for scope in grant.scopes)) for grant in grants)
    told = "; ".join(f"{count} for {scopes}" for scopes, count in sorted(kinds.items()))
    return told or "none: whoever reaches this address may do everything"


def _names(hosts: frozenset[str] | None) -> str:
    return "any" if hosts is None else ", ".join(sorted(hosts))


def _database(url: str) -> str:
    """Return what may be told of a database: a password can be in any other part of its URL."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return "set"
    return " ".join(filter(None, (parsed.get_backend_name(), parsed.host, parsed.database)))


def _age(age_s: float) -> str:
    if age_s < 7200:
        return seconds_words(age_s)
    return f"{age_s / 3600:.0f} h" if age_s < 172_800 else f"{age_s / 86_400:.0f} days"


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
