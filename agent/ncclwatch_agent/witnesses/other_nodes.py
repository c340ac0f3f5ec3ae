"""Tries to reach other nodes of a job that the server gets no answer from.

Only addresses are tried that a process of the job here has a connection to: a server cannot have an agent look round in
a network, and an address that means another host here, as those of container bridges do, is no answer.
"""

import asyncio
from collections.abc import Iterable

from ncclwatch.contract import config
from ncclwatch.contract.model.job import Contact
from ncclwatch_agent.process.connections.addresses import connected_to, own_addresses
from ncclwatch_agent.uplink.knocking import knock

ANSWERS_S = 2.0  # in which a kernel refuses a connection


async def answering(text: str, pids: Iterable[int]) -> tuple[int, ...]:
    """Return which nodes answer, by their place in the text of a PROBE, from 0."""
    known = await asyncio.to_thread(_others, tuple(pids))
    nodes = [_known(each.split()[: config.ADDRESSES_MAX], known) for each in text.split(";")[: config.PROBED_MAX]]
    tried = tuple({address for node in nodes for address in node})
    found = await asyncio.gather(*(knock(each, config.PROBE_PORT, ANSWERS_S) for each in tried))
    # One that is open is none: nothing listens there, so that a proxy on the way has taken it, whoever is down.
    refusing = {address for address, contact in zip(tried, found, strict=True) if contact is Contact.CLOSED}
    return tuple(place for place, node in enumerate(nodes) if not refusing.isdisjoint(node))


def _others(pids: Iterable[int]) -> set[str]:
    return connected_to(pids).difference(own_addresses())


def _known(words: Iterable[str], known: set[str]) -> tuple[str, ...]:
    return tuple(known.intersection(words))
