"""Serves as one of several servers: follows until it leads, and begins again as a follower when it leads no more."""

import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from fastapi import FastAPI
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from starlette.types import ASGIApp

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.network import urls
from ncclwatch_server import limits
from ncclwatch_server.leadership.elector import Elector, Reign
from ncclwatch_server.leadership.lease import Candidate, LeaseTable
from ncclwatch_server.leadership.roles import ask_term
from ncclwatch_server.security.boundary import Boundary
from ncclwatch_server.security.neighbours import Neighbours
from ncclwatch_server.serving.follower import follow
from ncclwatch_server.serving.uvicorn_server import Serving, serve
from ncclwatch_server.settings import Settings
from ncclwatch_server.watch.tick import Watch

log = logging.getLogger("ncclwatch.server")

_OWN_OPTIONS = ("--listen-fd", "--ready-fd")  # each with a value; good for one process only


def candidate(advertised: str, store: str) -> Candidate:
    """Return this server as others know it. Raises `ConfigError`."""
    parts = urlsplit(urls.check(advertised, "--advertise"))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ConfigError(f"--advertise {advertised!r} is no address of a server; write http://HOST:PORT or https://")
    try:
        backend = make_url(store).get_backend_name()
    except ArgumentError:
        backend = ""
    if not backend.startswith("postgres"):
        raise ConfigError(
            "--advertise is for several servers with one database: name it with --store postgresql://USER@HOST/DATABASE"
        )
    return Candidate(id=uuid.uuid4().hex, url=advertised.rstrip("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """What one of several servers needs beside what a single one does."""

    me: Candidate
    settings: Settings

    @classmethod
    def of(cls, advertised: str, settings: Settings) -> "Election":
        """Return that of this server. Raises `ConfigError`."""
        return cls(me=candidate(advertised, settings.store), settings=settings)

    def serve(self, serving: Serving, listener: socket.socket, make_app: Callable[[Elector], FastAPI]) -> None:
        """Follow, lead, and follow again, until a signal. Raises `ConfigError`. `make_app` builds that of a leader."""
        leases = LeaseTable(self.settings.store, self.me)
        elector = Elector(leases, ask_term)
        lost = False
        try:
            if not follow(elector, serving, listener, self._neighbours(), self._guard):
                return
            log.info("this server leads now (term %d)", elector.term)
            lost = _lead(elector, make_app, serving, listener)
        finally:
            elector.leave()
            leases.close()
        if lost:
            _begin_again(listener)

    def _neighbours(self) -> Neighbours:
        guarded = self.settings.access().guarded
        return Neighbours(private=self.settings.private or not guarded, guarded=guarded, users=self.settings.users)

    def _guard(self, app: ASGIApp) -> ASGIApp:
        return Boundary(app, hosts=self.settings.hosts, access=self.settings.access())


def _lead(elector: Elector, make_app: Callable[[Elector], FastAPI], serving: Serving, listener: socket.socket) -> bool:
    """Serve as the leader. Returns whether another server leads now; else a signal ended it."""
    with Reign(elector) as reign:  # before anything that takes its time, such as to read the store
        app = make_app(elector)
        watch: Watch = app.state.watch
        watch.counters.lives += (elector.life,)
        reign.healthy = lambda: watch.life.age_s() < limits.LEADER_STILL_S
        serve(app, replace(serving, announced=True, ready_fd=None), listener.dup(), reign.end)  # uvicorn closes it
    return reign.lost.is_set()


def _begin_again(listener: socket.socket) -> None:
    """Replace this process by a new one that follows, on the same socket: nothing of what it led is left over."""
    log.info("this server follows from now on")
    listener.set_inheritable(True)
    arguments = [*without(sys.orig_argv[1:], _OWN_OPTIONS), "--listen-fd", str(listener.fileno())]
    os.execv(sys.executable, [sys.executable, *arguments])


def without(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return a command line without some options and their values."""
    kept = []
    skip = False
    for each in arguments:
        if skip:
            skip = False
        elif each in options:
            skip = True
        elif each.partition("=")[0] not in options:
            kept.append(each)
    return kept
