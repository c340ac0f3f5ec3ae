"""A real HTTP receiver of alerts that answers as a test wants, and remembers what came."""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    at: float  # seconds since 1970

    @property
    def json(self) -> dict:
        """Return what it says."""
        return json.loads(self.body)

    @property
    def event(self) -> str:
        """Return which message of an incident it is."""
        return self.json["notification"]["event"]


@dataclass
class Manners:
    """How the receiver answers."""

    statuses: list[int] = field(default_factory=list)  # of the next answers; 200 when there are no more
    headers: dict[str, str] = field(default_factory=dict)
    silent: bool = False  # takes requests and never answers
    body: bytes = b"ok"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A sender that hangs up is no error of the receiver's."""


class Receiver:
    """Listens on a free loopback port while the context lasts."""

    def __init__(self, port: int = 0) -> None:
        self.manners = Manners()
        self.all: list[Received] = []  # every request, refused ones too
        self.taken: list[Received] = []  # those that were answered with 2xx
        self._let_go = threading.Event()
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    @property
    def events(self) -> list[str]:
        """Return which messages were taken."""
        return [received.event for received in self.taken]

    def take(self, received: Received) -> int:
        """Remember a request. Returns the status to answer with, 0 for none."""
        self.all.append(received)
        if self.manners.silent:
            self._let_go.wait(30)
            return 0
        status = self.manners.statuses.pop(0) if self.manners.statuses else 200
        if status < 300:
            self.taken.append(received)
        return status


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.take(Received(path=self.path, headers=headers, body=body, at=time.time()))
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in receiver.manners.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(receiver.manners.body)))
            self.end_headers()
            self.wfile.write(receiver.manners.body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Handler
