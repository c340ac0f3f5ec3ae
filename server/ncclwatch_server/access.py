"""What does a request show, and is it let through? The rules are in `scopes`."""

from fastapi import HTTPException, Request
from starlette.requests import HTTPConnection

from ncclwatch_server.audit import Act, AuditTrail
from ncclwatch_server.scopes import Access, Caller, Denial, Scope

COOKIE = "ncclwatch_token"  # a browser sends no header with the address of a page


class Gate:
    """A dependency of routes; its value is who calls."""

    def __init__(self, access: Access, scope: Scope) -> None:
        self._access = access
        self._scope = scope

    def __call__(self, connection: HTTPConnection) -> Caller:
        """Let the request through or answer 401 or 403."""
        found = self._access.judge(shown(connection), self._scope)
        if isinstance(found, Denial):
            raise HTTPException(
                status_code=found.status, detail=found.sentence, headers={"WWW-Authenticate": found.challenge}
            )
        return found


def shown(connection: HTTPConnection) -> str:
    """Return the token of a request: of its Authorization header, else of the cookie that pages set; "" if none."""
    scheme, _, word = connection.headers.get("authorization", "").partition(" ")
    if scheme:
        return word.strip() if scheme.lower() == "bearer" else scheme
    return connection.cookies.get(COOKIE, "")


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
        caller = self._gate(request)
        asked = (await request.body()).decode("utf-8", "replace").strip()
        client = request.client.host if request.client else "unknown"
        detail = f"from {client}: {asked or 'no ranks named'}"
        self._trail.note(caller.name, self._act, str(request.path_params.get("job", "")), detail)
        return caller
