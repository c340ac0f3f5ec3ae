"""Tries to reach other nodes of a job that the server gets no answer from.

Only addresses are tried that a process of the job here has a connection to: a server cannot have an agent look round in
a network, and an address that means another host here, as those of container bridges do, is no answer.
"""

import asyncio
from collections.abc import Iterable

from ncclwatch.contract import config
from ncclwatch.contract.model.job import Contact
from ncclwatch_agent.process.network import connected_to, own_addresses
from ncclwatch_agent.uplink.knocking import knock

ANSWERS_S = 2.0  # in which a kernel refuses a connection


async def answering(text: str, pids: Iterable[int]) -> tuple[int, ...]:
    """Return which nodes answer, by their place in the text of a PROBE, from 0."""
    known = await asyncio.to_thread(connected_to, tuple(pids))
    known.difference_update(own_addresses())
    nodes = [each.split()[: config.ADDRESSES_MAX] for each in text.split(";")[: config.PROBED_MAX]]
    found = await asyncio.gather(*(_answers(_known(words, known)) for words in nodes))
    return tuple(place for place, answers in enumerate(found) if answers)


def _known(words: Iterable[str], known: set[str]) -> tuple[str, ...]:
    return tuple(known.intersection(words))


async def _answers(addresses: Iterable[str]) -> bool:
    found = await asyncio.gather(*(knock(each, config.PROBE_PORT, ANSWERS_S) for each in addresses))
    return Contact.ACKNOWLEDGES in found or Contact.CLOSED in found
