"""Sends a message to Slack as blocks of plain text: what ranks send can neither mention, link nor format.

Limits are Block Kit's: 150 characters of a header, 3000 of a section, 50 blocks.
"""

import httpx
import msgspec

from ncclwatch_server.notify.message import Message, cut
from ncclwatch_server.notify.posting import post
from ncclwatch_server.notify.stages import Stage
from ncclwatch_server.notify.targets import Slack, plain

HEADER_MAX = 150
SECTION_MAX = 2900
FALLBACK_MAX = 600
_MARKS = {Stage.FIRING: "\N{LARGE RED CIRCLE}", Stage.UPDATED: "\N{LEFT-POINTING MAGNIFYING GLASS}"}
_OVER = "\N{WHITE HEAVY CHECK MARK}"


class SlackChannel:
    """Posts to an incoming webhook."""

    refresh_s = 0.0

    def __init__(self, target: Slack, client: httpx.AsyncClient) -> None:
        self._url = plain(target.url)
        self._client = client

    async def send(self, message: Message) -> None:
        """Post one message."""
        await post(self._client, self._url, body_of(message))


def body_of(message: Message) -> bytes:
    """Return the JSON of a message."""
    title = inert(f"{_MARKS.get(message.stage, _OVER)} {message.title}")
    blocks: list[dict[str, object]] = [{"type": "header", "text": _plain(cut(title, HEADER_MAX))}]
    if len(title) > HEADER_MAX:
        blocks.append(_section(title))
    lines = [f"{name:<9} {inert(text)}" if name else f"          {inert(text)}" for name, text in _facts(message)]
    blocks += [_section(part) for part in _portions(lines)]
    if message.tree and message.stage is not Stage.RESOLVED:
        blocks.append(_preformatted(inert(message.tree)))
    if message.link:
        # The one thing that is a link: it is made of the server's own settings and the incident's id.
        blocks.append(
            {"type": "section", "text": {"type": "mrkdwn", "text": f"<{escape(message.link)}|Open incident>"}}
        )
    return msgspec.json.encode(
        {"text": escape(cut(title, FALLBACK_MAX)), "blocks": blocks, "unfurl_links": False, "unfurl_media": False}
    )


def _facts(message: Message) -> list[tuple[str, str]]:
    """What is over needs no advice and no stacks."""
    kept = ("why", "culprit", "one of", "cost", "incident")
    return [f for f in message.facts if f[0] != "page" and (message.stage is not Stage.RESOLVED or f[0] in kept)]


def escape(text: str) -> str:
    """Return text in which nothing is a mention or a link any more (the three characters that Slack wants escaped)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def inert(text: str) -> str:
    """Return text in which Slack finds no address to make a link of."""
    return text.replace("://", ":\N{ZERO WIDTH SPACE}//")


def _plain(text: str) -> dict[str, object]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _section(text: str) -> dict[str, object]:
    return {"type": "section", "text": _plain(text)}


def _preformatted(text: str) -> dict[str, object]:
    block = {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": text}]}
    return {"type": "rich_text", "elements": [block]}


def _portions(lines: list[str]) -> list[str]:
    """Return lines joined to texts that fit into a section each."""
    found: list[str] = []
    for line in lines:
        if found and len(found[-1]) + len(line) + 1 <= SECTION_MAX:
            found[-1] += "\n" + line
        else:
            found.append(cut(line, SECTION_MAX))
    return found
