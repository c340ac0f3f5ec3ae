"""Asks a server the few questions the command line has, over plain HTTP."""

import contextlib
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import TypeVar

import msgspec

from ncclwatch.cli.client.answers import Health, Incident, Job, JobStacks, Problem, Refusal, Whole
from ncclwatch.cli.client.proving import how_to_name, opener
from ncclwatch.contract import config
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.network import tls, tokens, urls
from ncclwatch.contract.network.peer_uid import NotOurs
from ncclwatch.contract.undecodable import UNDECODABLE
from ncclwatch.contract.words.printable import one_line

CAPTURE_S = 20.0  # to ask for records, and to write and send a capture
LOSSES_S = 10.0  # to ask the store of a server
BYTES_MAX = 128 * 1024 * 1024
DETAIL_BYTES_MAX = 64 * 1024
DETAIL_CHARS_MAX = 1000
STACKS_S_MAX = 75.0  # the server itself gives up before
TRACE_S_MAX = 60.0
T = TypeVar("T")


class ServerUnreachable(NcclwatchError):
    """Nobody answers at the address of the server, or somebody else does."""


class NotKnown(NcclwatchError):
    """The server knows no such thing."""


class NotDone(NcclwatchError):
    """The server understood, and could not do it. The message is its own sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server said."""

    data: bytes
    without: str = ""  # why a part is missing
    date: str = ""  # as the server's clock says


Query = Mapping[str, str | Sequence[str]]  # parameters of the API


class Client:
    """Asks one server. Every method raises `ServerUnreachable` with a sentence, making one `ConfigError`."""

    def __init__(self, url: str, token: str = "", timeout_s: float = 3.0, *, naming: str = config.NAMED) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._token = token if naming == config.NAMED else ""
        self._withheld = bool(token) and not self._token
        self._timeout_s = timeout_s
        self._opener = opener(self.url, proven=naming != config.NAMED)

    def check(self) -> None:
        """Make sure that this is an ncclwatch server."""
        if self.decode(self._get_ours("/healthz"), Health).service != "ncclwatch":
            raise ServerUnreachable(f"what answers at {self.url} is not an ncclwatch server; correct --server")

    def health(self) -> Health:
        """Return what the server says of itself."""
        return self.decode(self._get_ours("/healthz"), Health)

    def refusals(self) -> tuple[Refusal, ...]:
        """Return whom the server refused lately. Raises `NotKnown` for a server that does not tell."""
        return self.decode(self.fetch("/api/v1/refusals"), tuple[Refusal, ...])

    def date(self) -> str:
        """Return what time it is there, as a Date header says it."""
        return self._ask_ours("/healthz").date

    def jobs(self) -> tuple[Job, ...]:
        """Return all jobs."""
        return self.decode(self._get_ours("/api/v1/jobs"), tuple[Job, ...])

    def incidents(self, within_s: float | None = None) -> tuple[Incident, ...]:
        """Return the newest incidents; with `within_s` all that were opened so lately, as far as a page has them."""
        wanted = {"within_s": f"{within_s:.3f}", "limit": str(config.INCIDENTS_PAGE_MAX)} if within_s else {}
        return self.decode(self.incidents_json(wanted), tuple[Incident, ...])

    def jobs_json(self, wanted: Query) -> bytes:
        """Return the jobs that fit, as machines read them. `wanted` are the parameters of the API."""
        return self.fetch("/api/v1/jobs" + _query(wanted))

    def open_incidents_json(self, wanted: Query | None = None) -> bytes:
        """Return all open incidents that fit, as machines read them."""
        return self.incidents_json({**(wanted or {}), "state": "open", "limit": str(config.INCIDENTS_PAGE_MAX)})

    def incidents_json(self, wanted: Query) -> bytes:
        """Return the incidents that fit, as machines read them. `wanted` are the parameters of the API."""
        return self.incidents_page(wanted).data

    def incidents_page(self, wanted: Query) -> Answer:
        """Return the same, and whether some are missing. Raises `NotKnown` for a `before` that is none."""
        return self._ask_ours("/api/v1/incidents" + _query(wanted), known=bool(wanted.get("before")))

    def incident_json(self, incident: str) -> bytes:
        """Return an incident as machines read it. Raises `NotKnown`."""
        return self.fetch(f"/api/v1/incidents/{_quoted(incident)}")

    def incident(self, incident: str) -> Whole:
        """Return an incident. Raises `NotKnown`."""
        return self.decode(self.incident_json(incident), Whole)

    def incident_text(self, incident: str) -> str:
        """Return an incident as people read it."""
        return self.fetch(f"/api/v1/incidents/{_quoted(incident)}/text").decode()

    def incident_brief(self, incident: str, width: int) -> str:
        """Return what people need of it at once, in at most ten lines of this width (60 to 160)."""
        return self.fetch(f"/api/v1/incidents/{_quoted(incident)}/text?brief=true&width={width}").decode()

    def losses_json(self, within_s: float) -> bytes:
        """Return what hangs have cost that were reported so lately. Raises `NotKnown` for a server that cannot tell."""
        return self.fetch(f"/api/v1/losses?within_s={within_s:.0f}", timeout_s=LOSSES_S)

    def report(self, job: str) -> bytes:
        """Return the report on a job, as JSON."""
        return self.fetch(f"/api/v1/jobs/{_quoted(job)}/report")

    def stacks_json(self, job: str, ranks: tuple[int, ...] | None, *, native: bool) -> bytes:
        """Let the nodes look at the ranks of a job; None: at those that tell most. Raises `NotKnown` and `NotDone`."""
        wanted = msgspec.json.encode({"ranks": ranks, "native": native})
        return self.fetch(f"/api/v1/jobs/{_quoted(job)}/stacks", wanted, STACKS_S_MAX)

    def trace(self, job: str, ranks: tuple[int, ...] | None) -> bytes:
        """Return the last minutes of a job as a Perfetto trace; None: of the ranks that matter. Raises `NotKnown`."""
        return self.fetch(f"/api/v1/jobs/{_quoted(job)}/trace", msgspec.json.encode({"ranks": ranks}), TRACE_S_MAX)

    def capture(self, job: str, within_s: float) -> bytes:
        """Return all that is known of a job, as a zip file. Raises `NotKnown` and `NotDone`.

        `within_s`: for so long stacks are waited for that nobody has looked at yet.
        """
        wanted = msgspec.json.encode({"within_s": within_s})
        return self.fetch(f"/api/v1/jobs/{_quoted(job)}/capture", wanted, within_s + CAPTURE_S)

    def stacks(self, data: bytes) -> JobStacks:
        """Return what an answer of `stacks_json` says."""
        return self.decode(data, JobStacks)

    def fetch(self, path: str, body: bytes | None = None, timeout_s: float = 0.0, method: str = "") -> bytes:
        """Return what the server answers to a GET, or to a POST of JSON. Raises `NotKnown` for 404."""
        return self._ask(path, body, timeout_s, method).data

    def _ask(self, path: str, body: bytes | None = None, timeout_s: float = 0.0, method: str = "") -> Answer:
        try:
            request = urllib.request.Request(self.url + path, data=body, method=method or None)
            if body is not None:
                request.add_header("Content-Type", "application/json")
            if self._token:
                request.add_header("Authorization", f"Bearer {self._token}")
            with self._opener.open(request, timeout=timeout_s or self._timeout_s) as answer:
                without = one_line(answer.headers.get(config.INCOMPLETE_HEADER, ""))[:DETAIL_CHARS_MAX]
                return Answer(data=answer.read(BYTES_MAX), without=without, date=answer.headers.get("Date", ""))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error, path) from error
        except NotOurs as error:
            raise ServerUnreachable(how_to_name(error)) from error
        except (OSError, HTTPException, ValueError) as error:
            if distrusted := tls.distrust_words(self.url, error):
                raise ServerUnreachable(distrusted) from error
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ServerUnreachable(
                f"no ncclwatch server answers at {self.url} ({reason}); start ncclwatch-server there, "
                f"or name another with --server or {config.ENV_SERVER}"
            ) from error

    def decode(self, data: bytes, kind: type[T]) -> T:
        """Return what an answer says."""
        try:
            return msgspec.json.decode(data, type=kind)
        except UNDECODABLE as error:
            raise self._stranger() from error

    def _get_ours(self, path: str) -> bytes:
        """Return what every ncclwatch server answers."""
        return self._ask_ours(path).data

    def _ask_ours(self, path: str, *, known: bool = False) -> Answer:
        """Return what every ncclwatch server answers; with `known`, one may answer that it does not know."""
        try:
            return self._ask(path)
        except NotKnown as error:
            if known:
                raise
            raise self._stranger() from error

    def _stranger(self) -> ServerUnreachable:
        return ServerUnreachable(
            f"what answers at {self.url} is not an ncclwatch server of this version; correct --server"
        )

    def _refusal(self, error: urllib.error.HTTPError, path: str) -> NcclwatchError:
        """Return the error for an answer that is none: what was asked of whom, what it said, what to do."""
        said = _detail(error)
        if error.code == 404:
            return NotKnown(said or f"the server at {self.url} does not know {path}")
        if error.code == 401 and self._withheld:
            return ServerUnreachable(
                f"the server at {self.url} wants a token, which is shown only to a server that is named; name it with "
                f"--server or {config.ENV_SERVER}"
            )
        if error.code == 401:
            wrong = "does not take this token" if self._token else "wants a token"
            return ServerUnreachable(
                f"the server at {self.url} {wrong}; set {config.ENV_TOKEN} or {config.ENV_TOKEN_FILE}"
            )
        if 300 <= error.code < 400:
            return ServerUnreachable(
                f"the server at {self.url} names another address ({error.code}), which was not asked; if that is the "
                f"server, name it with --server or {config.ENV_SERVER}"
            )
        if error.code == 403 and config.FOREIGN_HEADER in error.headers:
            return ServerUnreachable(f"the server at {self.url} does not answer {path}: {said or 'forbidden'}")
        if error.code == 403:
            return ServerUnreachable(
                f"the server at {self.url} does not let this token ask for {path}: {said or 'forbidden'}; show one of "
                f"the operator's scope in {config.ENV_TOKEN} or {config.ENV_TOKEN_FILE}"
            )
        if error.code in (400, 409, 422, 429, 503) and said:
            return NotDone(said)
        return ServerUnreachable(
            f"the server at {self.url} answered {error.code} to {path}{': ' + said if said else ''}; look at its log"
        )


def dial(server: str = "", environ: Mapping[str, str] = os.environ, timeout_s: float = 3.0) -> Client:
    """Return a client of the server that an option or else the environment means. Raises `ConfigError`."""
    urls.check(server, "--server")
    urls.check(environ.get(config.ENV_SERVER, "") if not server else "", config.ENV_SERVER)
    naming = config.NAMED if server else config.server_naming(environ)
    return answering(server or config.server_url(environ), token(environ), timeout_s, naming)


def answering(named: str, token: str, timeout_s: float, naming: str = config.NAMED) -> Client:
    """Return a client of the first of several servers that answers, as any does for all; of the last if none does."""
    *others, last = config.addresses(named)
    for url in others:
        client = Client(url, token, timeout_s, naming=naming)
        with contextlib.suppress(ServerUnreachable):
            client.check()
            return client
    return Client(last, token, timeout_s, naming=naming)


def token(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token to show, "" if there is none. Raises `ConfigError`."""
    return tokens.shown_by_reader(environ)


def _detail(error: urllib.error.HTTPError) -> str:
    """Return the server's sentence, "" if it said none."""
    try:
        said = msgspec.json.decode(error.read(DETAIL_BYTES_MAX), type=Problem).detail
    except (OSError, HTTPException, ValueError, *UNDECODABLE):
        return ""
    return one_line(said)[:DETAIL_CHARS_MAX]


def _query(wanted: Query) -> str:
    """Return parameters as they stand behind a path; those without a value are left out."""
    query = urllib.parse.urlencode({name: value for name, value in wanted.items() if value}, doseq=True)
    return f"?{query}" if query else ""


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")
