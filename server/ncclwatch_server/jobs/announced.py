"""Checks what an agent announces of a job, and what it says of its node."""

import ipaddress

from ncclwatch.contract import config, job_names, wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.network.tokens import Bounds
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link


def addresses_of(said: wire.Announce) -> tuple[str, ...]:
    """Return the addresses that an agent says its node to have: they are sent to other agents."""
    return tuple(each for each in said.addresses[: config.ADDRESSES_MAX] if _is_address(each))


def _is_address(word: str) -> bool:
    """Whether it is one of IPv4, of some interface but the loopback: one of IPv6 may end with any text ("::1%...")."""
    try:
        address = ipaddress.IPv4Address(word)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)


def check(said: wire.Announce, link: Link) -> None:
    """Raise `WireError` of an announcement that no job can have, or that the caller may not make."""
    if not 1 <= said.world_size <= limits.RANKS_MAX:
        raise WireError(f"a job of {said.world_size} ranks was announced; 1 to {limits.RANKS_MAX} can be watched")
    if not job_names.is_canonical(said.job) or len(said.instance) > 1000:
        raise WireError(
            f"{said.job[:200]!r} is not the name of a job: it is empty, too long or not printable, or a part of it "
            'between "/" is'
        )
    if len(said.ranks) > said.world_size:
        raise WireError(f"job {said.job} of {said.world_size} ranks was announced with {len(said.ranks)} of them")
    if min(said.ranks, default=0) < 0 or not 0 <= said.attempt < 2**31:
        raise WireError(f"job {said.job} was announced with an impossible rank or attempt")
    if max(said.ranks, default=0) >= said.world_size:
        raise WireError(f"job {said.job} of {said.world_size} ranks has no rank {max(said.ranks)}")
    if not link.caller.bounds.allow_job(said.job):
        raise WireError(
            f"the token of {link.caller.name} is bound to {link.caller.bounds}, and does not allow job {said.job!r}; "
            f"{_names_allowed(link.caller.bounds)}, or ask for another token"
        )


def _names_allowed(bounds: Bounds) -> str:
    """Return how to name a job so that a token allows it."""
    if len(bounds.namespaces) == 1 and not bounds.jobs:
        return f"name the job with NCCLWATCH_JOB={bounds.namespaces[0]}/NAME"
    return "name the job otherwise with NCCLWATCH_JOB"
