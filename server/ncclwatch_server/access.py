"""Who may read? Whoever shows the token, or everyone on the loopback address when there is none."""

import hmac

from fastapi import HTTPException
from starlette.requests import HTTPConnection

from ncclwatch.contract import config

COOKIE = "ncclwatch_token"  # a browser cannot send a header with the address of a page


def shows(authorization: str, token: str) -> bool:
    """Whether an Authorization header holds the token, compared in constant time."""
    return not token or hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())


class TokenGate:
    """A dependency of routes that only readers with the token may use."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, connection: HTTPConnection) -> None:
        """Let the request through or answer 401."""
        if not shows(shown(connection), self._token):
            raise HTTPException(
                status_code=401,
                detail=f"this server wants a token; set {config.ENV_TOKEN} or {config.ENV_TOKEN_FILE}",
                headers={"WWW-Authenticate": "Bearer"},
            )


def shown(connection: HTTPConnection) -> str:
    """Return what a request shows: its Authorization header, else the cookie that the login page sets, as one."""
    cookie = connection.cookies.get(COOKIE, "")
    return connection.headers.get("authorization", "") or (f"Bearer {cookie}" if cookie else "")
