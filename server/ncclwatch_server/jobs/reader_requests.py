"""Waits for what a reader has asked the nodes of a job for."""

import asyncio
import contextlib
from typing import Protocol, TypeVar


class _Request(Protocol):
    over: asyncio.Event  # every question is answered, or its line broke


Request = TypeVar("Request", bound=_Request)


async def wait_for_answers(under_way: list[Request], request: Request, patience_s: float) -> None:
    """Keep a request among those under way until it is over, or for so many seconds: then it has what has come."""
    under_way.append(request)
    try:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(request.over.wait(), patience_s)
    finally:
        under_way.remove(request)
