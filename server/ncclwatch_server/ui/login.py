"""Lets a browser show a token: on a page that asks for it once; from then on its cookie names a session.

The cookie goes to no other site, no script reads it, and it ends with the browser. Where no token is set, nobody is
asked for one.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from ncclwatch_server.security.access import COOKIE
from ncclwatch_server.security.sessions import Sessions
from ncclwatch_server.ui.render import PAGES

FORM_BYTES_MAX = 8192
PATH_CHARS_MAX = 500


class LoginNeeded(Exception):
    """A page was asked for without a token that opens it."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


async def _anyone(_: HTTPConnection) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageGate:
    """Lets through who may read the API, and sends all others to the login page."""

    check: Callable[[HTTPConnection], Awaitable[object]] = _anyone  # raises `HTTPException` with the reason
    sessions: Sessions = field(default_factory=Sessions)

    async def __call__(self, connection: HTTPConnection) -> None:
        """Let the request through. Raises `LoginNeeded`."""
        try:
            await self.check(connection)
        except HTTPException as error:
            raise LoginNeeded(str(error.detail)) from error

    async def refusal(self, request: Request, token: str) -> str:
        """Return why a token opens nothing to whoever shows it, "" if it does."""
        headers = [(b"authorization", b"Bearer " + token.encode())]
        try:
            await self(HTTPConnection({"type": "http", "headers": headers, "client": request.scope.get("client")}))
        except LoginNeeded as error:
            return error.sentence
        return ""


def add_login(app: FastAPI, gate: PageGate) -> None:
    """Add the login page."""

    @app.get("/login", include_in_schema=False)
    async def page(next: str = "/jobs") -> Response:
        return _page(next, "")

    @app.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > FORM_BYTES_MAX:
                return _page("/jobs", "that is too long for a token")
        form = parse_qs(body.decode("utf-8", "replace"))
        token, target = form.get("token", [""])[0].strip(), form.get("next", ["/jobs"])[0]
        refusal = (
            await gate.refusal(request, token) if token.isascii() else "a token is made of plain letters and digits"
        )
        if refusal:
            return _page(target, refusal)
        answer = RedirectResponse(_own(target), status_code=303)
        word = gate.sessions.begin(token)
        answer.set_cookie(COOKIE, word, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer

    @app.post("/logout", include_in_schema=False)
    async def logout(request: Request) -> Response:
        gate.sessions.end(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", status_code=303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer


async def to_login(request: Request, error: Exception) -> Response:
    """Send a browser to the login page; a stream or picture is only refused."""
    if request.url.path.startswith(("/live/", "/matrix/", "/axes/")):
        return Response(str(error), status_code=401, media_type="text/plain")
    return RedirectResponse(f"/login?next={quote(request.url.path, safe='')}", status_code=303)


def _page(target: str, refusal: str) -> HTMLResponse:
    html = PAGES.render("login.html", target=_own(target), refusal=refusal, title="Log in")
    return HTMLResponse(html, status_code=401 if refusal else 200, headers={"Cache-Control": "no-store"})


def _own(target: str) -> str:
    """Return a path of this server: "//host" and the like would lead elsewhere."""
    plain = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if plain and len(target) <= PATH_CHARS_MAX else "/jobs"
