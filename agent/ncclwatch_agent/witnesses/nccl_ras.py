"""Asks NCCL's RAS, on its socket where one listens, for the communicators of this job.

RAS is a thread of NCCL in every process, on since 2.24; one of a node's processes holds the client socket, and it
answers for the whole job. The protocol is lines of text; JSON comes since 2.28.7 (NCCL User Guide, "RAS"). It is a weak
witness: it counts launches, so a hang of collectives that all have launched looks healthy, and it does not know
process groups, sizes or sends.

Any user may listen on its port. A process of NCCL does so as the user of its ranks, which is the agent's own: nobody
else is asked anything, nor is root.
"""

import asyncio
import re
from collections.abc import Iterable

import msgspec

from ncclwatch.contract.model.testimony import COMM_RANKS_MAX, COMMUNICATORS_MAX, CommRank, Communicator
from ncclwatch.contract.network import peer_uid
from ncclwatch.contract.undecodable import UNDECODABLE
from ncclwatch_agent.deadline import within
from ncclwatch_agent.uplink.proof import connect, end_of

DEFAULT_ADDRESS = "localhost:28028"
PROTOCOL = 2  # RAS answers with its own number and serves any client
COLLECT_S = 1  # that RAS itself waits for processes that do not answer
ASK_S_MAX = 1.4  # an incident waits 1.5 s for its evidence
BYTES_MAX = 16 * 1024 * 1024
_LINE_BYTES_MAX = 4096
# NCCL 2.28.9 leaves out the comma after a value that is followed by another key, for ranks that are missing.
_NO_COMMA = re.compile(rb'([\d"el])(\s*\n\s*)(?="[^"\n]*"\s*:)')


class _MissingStatus(msgspec.Struct, frozen=True):
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct, frozen=True):
    rank: int
    pid: int = -1
    collective_counts: dict[str, int] = {}


class _Missing(msgspec.Struct, frozen=True):
    rank: int
    pid: int = -1
    status: _MissingStatus = _MissingStatus()


class _Communicator(msgspec.Struct, frozen=True):
    size: int
    ranks: tuple[_Rank, ...] = ()
    missing_ranks: tuple[_Missing, ...] = ()


class _Status(msgspec.Struct, frozen=True):
    communicators: tuple[_Communicator, ...]


_decoder = msgspec.json.Decoder(_Status)


class Silent(Exception):
    """Why RAS said nothing of use, as a sentence."""


async def ask(address: str, deadline_s: float = ASK_S_MAX) -> bytes:
    """Return RAS's status as JSON. `address` is what NCCL_RAS_ADDR says, "" for its default. Raises `Silent`."""
    where = address or DEFAULT_ADDRESS
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal():
        raise Silent(f"NCCL_RAS_ADDR is {where[:100]!r}, which is no HOST:PORT")
    try:
        return await within(deadline_s, _talk(host.strip("[]"), int(port)))
    except asyncio.TimeoutError:
        raise Silent(f"NCCL RAS at {where} did not answer within {deadline_s:g} s") from None
    except (OSError, OverflowError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise Silent(f"nothing of NCCL RAS at {where} ({type(error).__name__})") from None


async def _talk(host: str, port: int) -> bytes:
    sock = await connect(host, port)
    try:
        peer_uid.check(f"{host}:{port}, where NCCL RAS would,", await end_of(sock), or_root=False)
        reader, writer = await asyncio.open_connection(sock=sock, limit=_LINE_BYTES_MAX)
    except peer_uid.NotOurs as error:
        sock.close()
        raise Silent(str(error)) from None
    except BaseException:
        sock.close()
        raise
    try:
        if not (await _line(reader, writer, f"CLIENT PROTOCOL {PROTOCOL}")).startswith("SERVER PROTOCOL "):
            raise Silent(f"what listens at {host}:{port} is no NCCL RAS")
        await _line(reader, writer, f"TIMEOUT {COLLECT_S}")
        if await _line(reader, writer, "SET FORMAT json") != "OK":
            raise Silent("the RAS of this NCCL has no JSON; that came with 2.28.7")
        writer.write(b"STATUS\n")
        parts, size = [], 0
        while part := await reader.read(65536):
            parts.append(part)
            size += len(part)
            if size > BYTES_MAX:
                raise Silent(f"NCCL RAS says more than {BYTES_MAX} bytes")
        return b"".join(parts)
    finally:
        writer.close()


async def _line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: str) -> str:
    """Say a line and return the one that comes back."""
    writer.write(said.encode() + b"\n")
    return (await reader.readuntil(b"\n")).decode("latin-1").strip()


def communicators(status: bytes, pids: Iterable[int]) -> tuple[Communicator, ...]:
    """Return the communicators that a process of these is in. Raises `Silent` on what is no status."""
    try:
        try:
            found = _decoder.decode(status)
        except UNDECODABLE:
            found = _decoder.decode(_NO_COMMA.sub(rb"\1,\2", status))
    except UNDECODABLE as error:
        raise Silent(f"NCCL RAS gave no status: {error}") from None
    wanted = set(pids)
    ours = [comm for comm in found.communicators if comm.size <= COMM_RANKS_MAX and wanted & _pids(comm)]
    return tuple(_condensed(comm) for comm in ours[:COMMUNICATORS_MAX])


def _pids(comm: _Communicator) -> set[int]:
    return {rank.pid for rank in comm.ranks} | {rank.pid for rank in comm.missing_ranks}


def _condensed(comm: _Communicator) -> Communicator:
    present = [
        CommRank(rank=rank.rank, pid=rank.pid, launched=sum(rank.collective_counts.values())) for rank in comm.ranks
    ]
    missing = [
        CommRank(rank=rank.rank, pid=rank.pid, launched=0, missing=True, dead=rank.status.considered_dead)
        for rank in comm.missing_ranks
    ]
    return Communicator(size=comm.size, ranks=tuple(present + missing))
