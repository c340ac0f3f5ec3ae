"""What does a server answer? The few questions the command line has, over plain HTTP."""

import ipaddress
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

import msgspec

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError, NcclwatchError

BYTES_MAX = 64 * 1024 * 1024
T = TypeVar("T")


class ServerUnreachable(NcclwatchError):
    """Nobody answers at the address of the server, or somebody else does."""


class NotKnown(NcclwatchError):
    """The server knows no such thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What an ncclwatch server says of itself."""

    service: str
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """That there is a stack is all that matters here."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The part of an incident that decides what to do."""

    id: str
    job: str
    state: str
    cause: str
    certainty: str
    severity: str
    summary: str
    opened_at: str = ""
    lateness: str = ""
    stacks: tuple[Stack, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The part of a job that a status line shows."""

    id: str
    state: str
    world_size: int
    ranks_seen: int = 0
    steps: int = 0
    waiting: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    open_incidents: tuple[str, ...] = ()


class Client:
    """Asks one server. Every method raises `ServerUnreachable` with a sentence."""

    def __init__(self, url: str, token: str = "", timeout_s: float = 3.0) -> None:
        self.url = url if "://" in url else f"http://{url}"
        self._token = token
        self._timeout_s = timeout_s
        # A cluster's proxy cannot reach this machine's loopback.
        handlers = [urllib.request.ProxyHandler({})] if _is_local(self.url) else []
        self._opener = urllib.request.build_opener(*handlers)

    def check(self) -> None:
        """Make sure that this is an ncclwatch server."""
        if self._decode("/healthz", Health).service != "ncclwatch":
            raise ServerUnreachable(f"what answers at {self.url} is not an ncclwatch server; correct --server")

    def jobs(self) -> tuple[Job, ...]:
        """Return all jobs."""
        return self._decode("/api/v1/jobs", tuple[Job, ...])

    def incidents(self, *, open_only: bool = False) -> tuple[Incident, ...]:
        """Return the incidents the server knows, the newest first."""
        return self._decode("/api/v1/incidents" + ("?state=open" if open_only else ""), tuple[Incident, ...])

    def incident_text(self, incident: str) -> str:
        """Return an incident as people read it."""
        return self.fetch(f"/api/v1/incidents/{urllib.parse.quote(incident, safe='')}/text").decode()

    def report(self, job: str) -> bytes:
        """Return the report on a job, as JSON."""
        return self.fetch(f"/api/v1/jobs/{urllib.parse.quote(job, safe='')}/report")

    def fetch(self, path: str, body: bytes | None = None, method: str = "") -> bytes:
        """Return what the server answers to a GET, or to a POST of JSON. Raises `NotKnown` for 404."""
        try:
            request = urllib.request.Request(self.url + path, data=body, method=method or None)
            if body is not None:
                request.add_header("Content-Type", "application/json")
            if self._token:
                request.add_header("Authorization", f"Bearer {self._token}")
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                data: bytes = answer.read(BYTES_MAX)
                return data
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                raise NotKnown(f"the server at {self.url} does not know {path}") from error
            if error.code == 401:
                raise ServerUnreachable(
                    f"the server at {self.url} wants a token; set {config.ENV_TOKEN} or {config.ENV_TOKEN_FILE}"
                ) from error
            raise ServerUnreachable(f"the server at {self.url} answered {error.code} to {path}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ServerUnreachable(
                f"no ncclwatch server answers at {self.url} ({reason}); start ncclwatch-server there, "
                f"or name another with --server or {config.ENV_SERVER}"
            ) from error

    def _decode(self, path: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self.fetch(path), type=kind)
        except (msgspec.DecodeError, NotKnown) as error:
            raise ServerUnreachable(
                f"what answers at {self.url} is not an ncclwatch server of this version; correct --server"
            ) from error


def token(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token to show, "" if there is none. Raises `ConfigError`."""
    named = environ.get(config.ENV_TOKEN, "").strip()
    path = environ.get(config.ENV_TOKEN_FILE, "").strip()
    if named or not path:
        return named
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the token in {path} ({error}); correct {config.ENV_TOKEN_FILE} or unset it"
        ) from error


def _is_local(url: str) -> bool:
    try:
        host = urllib.parse.urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
