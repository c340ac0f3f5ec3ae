"""Who may read? Whoever shows the token, or everyone on the loopback address when there is none."""

import hmac

from fastapi import HTTPException, Request

from ncclwatch.contract import config


def shows(authorization: str, token: str) -> bool:
    """Whether an Authorization header holds the token, compared in constant time."""
    return not token or hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())


class TokenGate:
    """A dependency of routes that only readers with the token may use."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: Request) -> None:
        """Let the request through or answer 401."""
        if not shows(request.headers.get("authorization", ""), self._token):
            raise HTTPException(
                status_code=401,
                detail=f"this server wants a token; set {config.ENV_TOKEN} or {config.ENV_TOKEN_FILE}",
                headers={"WWW-Authenticate": "Bearer"},
            )
