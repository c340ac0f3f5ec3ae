"""Another user of this machine, who started as root to get everything imported.

python -m tests.integration.other_user UID listen HOST PORT FILE   accept, and write all that comes into FILE
python -m tests.integration.other_user UID greet HOST PORT FILE    the same, and answer what no server does
python -m tests.integration.other_user UID hold HOST PORT FILE     accept only after a line on standard input
python -m tests.integration.other_user UID ask PORT PATH...        print what a server answers, as JSON
python -m tests.integration.other_user UID serve OPTION...         be ncclwatch-server

User 0 is left without capabilities, as root of a container is. A server may read every file, as its user could if this
checkout lay where others can read.
"""

import codecs
import contextlib
import ctypes
import http.client
import json
import os
import socket
import struct
import sys
import threading
from typing import BinaryIO

UPGRADE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip


_CAPABILITIES_3 = 0x20080522  # capset(2): the version of what follows
_DAC_READ_SEARCH = 1 << 2
_PR_SET_KEEPCAPS = 8


def main() -> None:
    """Become the user, and do as told."""
    uid, what, *arguments = sys.argv[1:]
    "localhost".encode("idna")  # imports what the other user may not be able to read
    if what == "ask":
        _become(int(uid))
        print(json.dumps([_ask(int(arguments[0]), path) for path in arguments[1:]]), flush=True)
        return
    if what == "serve":
        _serve(int(uid), arguments)
        return
    with open(arguments[2], "ab", buffering=0) as file:
        _become(int(uid))
        _listen((arguments[0], int(arguments[1])), file, what)


def _become(uid: int, capabilities: int = 0) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_KEEPCAPS, 1)
    os.setresuid(uid, uid, uid)
    sets = struct.pack("=6I", capabilities, capabilities, 0, 0, 0, 0)  # effective, permitted, inheritable
    if libc.capset(struct.pack("=Ii", _CAPABILITIES_3, 0), sets):
        raise OSError("capset")


def _serve(uid: int, options: list[str]) -> None:
    import ncclwatch_server.app
    import ncclwatch_server.serving.uvicorn_server  # noqa: F401  before this user may not be able to read them
    from ncclwatch_server.__main__ import main as serve

    for encoding in ("ascii", "latin-1", "unicode_escape"):
        codecs.lookup(encoding)
    _become(uid, _DAC_READ_SEARCH)
    serve(options)


def _listen(address: tuple[str, int], file: BinaryIO, what: str) -> None:
    listener = socket.create_server(address)
    print("ready", flush=True)
    if what == "hold":
        sys.stdin.readline()
        listener.settimeout(1.0)
    with contextlib.suppress(TimeoutError):
        while True:
            threading.Thread(target=_keep, args=(listener.accept()[0], file, what)).start()
    print("all", flush=True)


def _ask(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=UPGRADE if path.startswith("/ws") else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def _keep(connection: socket.socket, file: BinaryIO, what: str) -> None:
    connection.settimeout(5.0)
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            file.write(data)
            if what == "greet":
                connection.sendall(b"HTTP/1.0 404 Not Found\r\n\r\n")


if __name__ == "__main__":
    main()
