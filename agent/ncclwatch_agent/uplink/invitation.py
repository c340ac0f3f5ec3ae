"""What the agents of a job on several nodes must know of the server that one of them started."""

import re
import socket
import ssl

import msgspec

from ncclwatch.contract import config
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.undecodable import UNDECODABLE
from ncclwatch_agent.process.connections.addresses import own_addresses

HOSTS_MAX = 8


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job's server is, how it proves who it is, and what it wants to be shown."""

    hosts: tuple[str, ...]  # names and addresses under which it may be reached, the likeliest first
    port: int
    certificate: str  # PEM
    token: str  # for that job only

    def url(self, turn: int) -> str:
        """Return the address to try in this turn."""
        host = self.hosts[turn % len(self.hosts)]
        return f"https://{f'[{host}]' if ':' in host else host}:{self.port}"


def encode(invitation: Invitation) -> bytes:
    """Return it as ranks carry it, at most `config.OFFER_BYTES_MAX` bytes."""
    return msgspec.json.encode(invitation)


def decode(data: bytes) -> Invitation:
    """Return what came through a job's store. Raises `WireError`: any rank may write there."""
    try:
        found = msgspec.json.decode(data, type=Invitation)
    except UNDECODABLE as error:
        raise WireError(f"the job's store has no address of a server but {data[:60]!r} ({error})") from error
    hosts = 0 < len(found.hosts) <= HOSTS_MAX and all(map(_is_host, found.hosts))
    if not (0 < found.port < 65536 and hosts and _is_pem(found.certificate) and _is_word(found.token)):
        raise WireError(f"the job's store has no address of a server but {data[:60]!r}")
    return found


def _is_host(host: str) -> bool:
    return re.fullmatch(r"[\w.:%-]{1,255}", host) is not None


def _is_word(token: str) -> bool:
    return token.isascii() and token.isprintable()


def _is_pem(certificate: str) -> bool:
    try:
        return bool(ssl.PEM_cert_to_DER_cert(certificate))
    except ValueError:
        return False


def hosts_of_this_node(master: str) -> tuple[str, ...]:
    """Return the names and addresses under which other nodes may reach this one.

    `master` is the name by which they reach the job's store, if that is here ("" if it is not): that is known to work.
    """
    found = dict.fromkeys(filter(None, (master, socket.gethostname(), *own_addresses())))
    return tuple(found)[:HOSTS_MAX]


def exchanged_files() -> tuple[str, ...]:
    """Return the endings of files beside a ring that belong to this."""
    return tuple(ending + more for ending in (config.OFFER_SUFFIX, config.FOUND_SUFFIX) for more in ("", ".new"))
