"""Finds out whether the kernel of another host answers."""

import asyncio
import errno

from ncclwatch.contract.model.job import Contact
from ncclwatch_agent.deadline import within

_UNREACHABLE = (errno.EHOSTUNREACH, errno.ETIMEDOUT)  # without a route at all it is this node that is cut off


async def knock(host: str, port: int, seconds: float) -> Contact:
    """Return what comes back of a connection: that it is open, that it is refused, or nothing for so long."""
    try:
        _, writer = await within(seconds, asyncio.open_connection(host, port))
    except ConnectionError:
        return Contact.CLOSED
    except asyncio.TimeoutError:
        return Contact.MUTE
    except OSError as error:
        return Contact.MUTE if error.errno in _UNREACHABLE else Contact.UNKNOWN
    writer.close()
    return Contact.ACKNOWLEDGES
