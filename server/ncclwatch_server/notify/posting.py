"""Posts a message over HTTP, and says what the answer means.

Imported only where there is a target: a server without any starts the sooner.
"""

import logging
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import urlsplit

import httpx

from ncclwatch.contract.network.urls import hidden
from ncclwatch_server.notify.delivery import SEND_S, Refused, Undelivered
from ncclwatch_server.notify.message import clean

CONNECTIONS_MAX = 256  # more than all targets can have under way: none waits for a connection of another
ANSWER_BYTES_MAX = 4096
RETRY_AFTER_S_MAX = 300.0
_RETRIED = frozenset({408, 425, 429})  # and all from 500 on: the practice of Prometheus' Alertmanager


def open_client() -> httpx.AsyncClient:
    """Return the HTTP client of all targets. It follows no redirects: a receiver must not send the server elsewhere.

    It keeps no cookies either: one that no header can hold would keep all later messages from that target.
    """
    # It would log each URL, and for Slack that is the secret.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return httpx.AsyncClient(
        timeout=httpx.Timeout(SEND_S, pool=SEND_S / 2),
        limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=8, keepalive_expiry=30.0),
        follow_redirects=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        headers={"User-Agent": "ncclwatch"},
    )


async def post(client: httpx.AsyncClient, url: str, body: bytes, headers: dict[str, str] | None = None) -> None:
    """Post JSON. Raises `Undelivered` or `Refused`; neither repeats the URL, which may be a secret."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    try:
        async with client.stream("POST", url, content=body, headers=sent) as answer:
            status, after = answer.status_code, answer.headers.get("retry-after", "")
            said = await _beginning(answer) if not answer.is_success else ""
    except httpx.TimeoutException as error:
        raise Undelivered(f"no answer in time ({type(error).__name__})") from error
    except httpx.HTTPError as error:
        raise Undelivered(f"{type(error).__name__}: {clean(hidden(str(error), *_secrets(url)), 200)}") from error
    if 200 <= status < 300:
        return
    said = hidden(said, *_secrets(url))
    told = f"HTTP {status}" + (f", {said!r}" if said else "")
    if status in _RETRIED or status >= 500:
        raise Undelivered(told, _seconds(after))
    if 300 <= status < 400:
        raise Refused(f"{told}: a redirect, which is not followed; name the address it leads to")
    raise Refused(told)


def _secrets(url: str) -> tuple[str, ...]:
    """Return what an answer must not repeat: the path of a hook is its secret."""
    parts = urlsplit(url)
    return url, f"{parts.path}?{parts.query}", parts.path, parts.query, *parts.path.split("/"), parts.password or ""


async def _beginning(answer: httpx.Response) -> str:
    """Return the first words of an answer, of which there may be no end."""
    data = b""
    async for chunk in answer.aiter_raw(1024):
        data += chunk
        if len(data) >= ANSWER_BYTES_MAX:
            break
    return clean(data.decode(errors="replace"), 200)


def _seconds(after: str) -> float:
    """Return the seconds that a Retry-After header asks for; its other form, a date, is left alone."""
    return min(float(after), RETRY_AFTER_S_MAX) if after.isascii() and after.isdigit() else 0.0
