"""Reaches everything else by Apprise, which knows over a hundred services; an extra of its own."""

import asyncio
import functools
from collections.abc import Callable

from ncclwatch.contract.errors import ConfigError
from ncclwatch_server.notify.delivery import Undelivered
from ncclwatch_server.notify.mail import text_of
from ncclwatch_server.notify.message import Message, cut
from ncclwatch_server.notify.targets import Apprise, plain

BODY_MAX = 3000
_GAP = "\N{ZERO WIDTH SPACE}"


class AppriseChannel:
    """Hands messages to Apprise, which blocks: in a thread of the notifier's own loop, never in the server's."""

    refresh_s = 0.0

    def __init__(self, target: Apprise) -> None:
        self._notify = _service(plain(target.url), target.name)
        self._sending: asyncio.Future[object] | None = None

    async def send(self, message: Message) -> None:
        """Send one message. Apprise tells only whether it went well, and why not in its own log."""
        body = cut(text_of(message, unmentioning), BODY_MAX)
        title = unmentioning(cut(message.title, 200))
        # One at a time: an attempt that was given up still holds its thread.
        while self._sending is not None and not self._sending.done():
            await asyncio.wait({self._sending})
        notify = functools.partial(self._notify, body=body, title=title, body_format="text")
        self._sending = asyncio.get_running_loop().run_in_executor(None, notify)
        if not await asyncio.shield(self._sending):
            raise Undelivered("Apprise could not deliver it; its reason is in the log, above")


def unmentioning(text: str) -> str:
    """Return text that mentions nobody and links nowhere, whatever service reads it ("@everyone", "<!channel>")."""
    return text.replace("@", f"@{_GAP}").replace("<", f"<{_GAP}").replace("://", f":{_GAP}//")


def _service(url: str, name: str) -> Callable[..., object]:
    """Return what notifies at a URL. Raises `ConfigError`."""
    try:
        import apprise
    except ModuleNotFoundError as error:
        raise ConfigError(f"target {name!r} needs the package apprise: pip install 'ncclwatch[apprise]'") from error
    service = apprise.Apprise(asset=apprise.AppriseAsset(interpret_escapes=False, secure_logging=True))
    if not service.add(url):
        raise ConfigError(f"target {name!r}: Apprise does not know such a URL; its log says why")
    notify: Callable[..., object] = service.notify
    return notify
