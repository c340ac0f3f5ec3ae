"""Keeps urllib from following an answer that names another address: it would show the token to whoever is there."""

import urllib.request
from email.message import Message
from typing import IO


class DirectHttp(urllib.request.HTTPRedirectHandler):
    """A handler with which such an answer is an error with its status."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Follow nothing."""
