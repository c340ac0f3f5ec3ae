"""Answers HEAD wherever GET is answered, with the same headers: proxies and monitors ask so whether a page is there."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """Lets the application answer GET, and keeps the body back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        complete = False

        async def receive_until_complete() -> Message:
            # A stream of events would go on: whoever sends it stops when nobody is there any more.
            return {"type": "http.disconnect"} if complete else await receive()

        async def send_head(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                complete = True

        await self._app({**scope, "method": "GET"}, receive_until_complete, send_head)
