"""Reads what a request shows, and lets it through or not. The rules are in `scopes`.

First it is asked whose token that is (`recognised`, once for each request, before anything else is looked at), then
what that token allows (`Gate`, for each route).
"""

import asyncio
import logging
import math
from typing import cast

from fastapi import HTTPException, Request
from starlette.requests import HTTPConnection

from ncclwatch.contract.machine.liveness import LoopLife
from ncclwatch_server.security.audit import Act, AuditTrail
from ncclwatch_server.security.crowd import SEAT, Seat
from ncclwatch_server.security.scopes import Access, Caller, Denial, Grant, Lack, Scope
from ncclwatch_server.security.sessions import Sessions

log = logging.getLogger("ncclwatch.server")

COOKIE = "ncclwatch_session"  # a browser sends no header with the address of a page
TOLD_EVERY_S = 60.0  # of wrong tokens
TOLD_MAX = 20  # addresses of them; the others are told together
_FOUND = "whose_token_was_shown"  # name of what `recognised` has found, in the scope of a request


class Gate:
    """A dependency of routes; its value is who calls."""

    def __init__(self, access: Access, scope: Scope) -> None:
        self._access = access
        self._scope = scope

    async def __call__(self, connection: HTTPConnection) -> Caller:
        """Let the request through or answer 401, 403 or 429."""
        found = self._access.permit(await recognised(connection, self._access), self._scope)
        if isinstance(found, Denial):
            raise HTTPException(status_code=found.status, detail=found.sentence, headers=headers_of(found))
        seat = connection.scope.get("state", {}).get(SEAT)
        if isinstance(seat, Seat):
            seat.show()
        return found


async def recognised(connection: HTTPConnection, access: Access) -> Grant | Denial | None:
    """Return whose token a request shows, once the answer may be given: whoever guesses waits for it."""
    if _FOUND not in connection.scope:
        address = client_of(connection)
        found, wait_s = access.recognise(address, shown(connection, access.sessions), Scope.VIEWER)
        if wait_s:
            access.guesses.waits(address, 1)
            try:
                await asyncio.sleep(wait_s)
            finally:
                access.guesses.waits(address, -1)
        connection.scope[_FOUND] = found
    return cast("Grant | Denial | None", connection.scope[_FOUND])


def headers_of(denial: Denial) -> dict[str, str]:
    """Return the headers of an answer that lets nobody through."""
    headers = {"WWW-Authenticate": denial.challenge}
    if denial.lack is Lack.GUESSED:
        headers["Retry-After"] = str(math.ceil(TOLD_EVERY_S))
    return headers


def client_of(connection: HTTPConnection) -> str:
    """Return the address of whoever asks; proxies are believed as far as `serving` was told to."""
    return connection.client.host if connection.client else "unknown"


def shown(connection: HTTPConnection, sessions: Sessions) -> str:
    """Return the token of a request: of its Authorization header, else of the session in its cookie; "" if none."""
    scheme, _, word = connection.headers.get("authorization", "").partition(" ")
    if scheme:
        return word.strip() if scheme.lower() == "bearer" else scheme
    return sessions.token(connection.cookies.get(COOKIE, ""))


async def tell_guesses(access: Access, trail: AuditTrail, life: LoopLife) -> None:
    """Write down, once a minute and address, how many wrong tokens came from where, until cancelled."""
    while True:
        life.went_round()
        await asyncio.sleep(TOLD_EVERY_S)
        tell_of_guesses(access, trail)


def tell_of_guesses(access: Access, trail: AuditTrail) -> None:
    """Write down how many wrong tokens came from where since the last time."""
    found = sorted(access.guesses.untold().items(), key=lambda item: -item[1])
    for address, count in found[:TOLD_MAX]:
        log.warning("%d wrong tokens came from %s", count, address)
        trail.note("unknown", Act.GUESS, "", f"{count} wrong tokens from {address}")
    if found[TOLD_MAX:]:
        rest = sum(count for _, count in found[TOLD_MAX:])
        log.warning("%d wrong tokens came from %d further addresses", rest, len(found) - TOLD_MAX)
        trail.note("unknown", Act.GUESS, "", f"{rest} wrong tokens from {len(found) - TOLD_MAX} further addresses")


class AuditedGate:
    """A dependency of routes that look into ranks: what an operator asks for is written down before it is done.

    The job is the path's `job`; of the body, which says of which ranks, the beginning is kept.
    """

    def __init__(self, access: Access, trail: AuditTrail, act: Act) -> None:
        self._gate = Gate(access, Scope.OPERATOR)
        self._trail = trail
        self._act = act

    async def __call__(self, request: Request) -> Caller:
        """Let the request through and note it, or answer 401 or 403."""
        caller = await self._gate(request)
        asked = (await request.body()).decode("utf-8", "replace").strip()
        detail = f"from {client_of(request)}: {asked or 'no ranks named'}"
        self._trail.note(caller.name, self._act, str(request.path_params.get("job", "")), detail)
        return caller
