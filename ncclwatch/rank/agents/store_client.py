"""Speaks to a TCPStore of torch as its own client does, but in Python.

torch's client is no use in a thread of ours. It writes a stack trace to the terminal for each store that goes away. And
if the interpreter ends while a thread is inside it, the process aborts: CPython ends that thread where it wants the GIL
back, and no C++ frame lets it pass. The protocol is that of torch 2.13 (`TCPStoreBackend.hpp`), with both of its
servers.
"""

import socket
import struct

from ncclwatch.contract.errors import NcclwatchError

ANSWER_S = 5.0  # in which a store must take a connection, and give an answer

_VALIDATE, _SET, _GET, _CHECK = 0, 1, 3, 5
_MAGIC = 0x3C85F7CE
_READY, _NOT_READY = b"\0", b"\1"
_DISCARDED = 65536  # bytes at a time
_SIZE = struct.Struct("=Q")


class StoreGone(NcclwatchError):
    """A store that cannot be reached, does not answer in time, or is none."""


class StoreClient:
    """One connection to a store."""

    def __init__(self, host: str, port: int) -> None:
        """Connect. Raises `StoreGone`, as everything here does."""
        try:
            self._socket = socket.create_connection((host, port), ANSWER_S)
        except (OSError, ValueError, OverflowError) as error:
            raise StoreGone(str(error)) from error
        self._send(struct.pack("=BI", _VALIDATE, _MAGIC))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def set(self, key: str, value: bytes) -> None:
        """Set a key. The store does not answer to that."""
        self._send(bytes([_SET]) + _key(key) + _sized(value))

    def get(self, key: str, bytes_max: int) -> bytes | None:
        """Return the value of a key, None if it is not set; of a longer one the beginning."""
        self._send(bytes([_CHECK]) + _SIZE.pack(1) + _key(key))
        answer = self._receive(1)
        if answer == _NOT_READY:
            return None
        if answer != _READY:
            raise StoreGone("its answer is none of a store")
        self._send(bytes([_GET]) + _key(key))
        (size,) = _SIZE.unpack(self._receive(_SIZE.size))
        value = self._receive(min(size, bytes_max))
        # Who hangs up on a store that is writing makes it complain on its terminal.
        for left in range(size - len(value), 0, -_DISCARDED):
            self._receive(min(left, _DISCARDED))
        return value

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise StoreGone(str(error)) from error

    def _receive(self, size: int) -> bytes:
        found = b""
        try:
            while len(found) < size:
                part = self._socket.recv(size - len(found))
                if not part:
                    raise ConnectionResetError("it hung up")
                found += part
        except OSError as error:
            self.close()
            raise StoreGone(str(error)) from error
        return found


def _key(key: str) -> bytes:
    return _sized(b"/" + key.encode())  # torch's client puts that before every key


def _sized(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data
