"""Makes messages fit into what a server takes: it parts them, and leaves out what matters least."""

from dataclasses import replace
from typing import TypeVar

import msgspec

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.ring import members
from ncclwatch.contract.wire import AgentMessage, Alike, Facts, Stacks, Testimonies, Views

T = TypeVar("T")


def with_short_views(message: Views) -> Views:
    """Return views of which none is longer than a server takes. How a rank came to an operation is left out first."""
    return msgspec.structs.replace(message, ranks=tuple(map(_short_view, message.ranks)))


def _short_view(view: RankView) -> RankView:
    plain = tuple(replace(op, route=0) for op in view.history)
    for short in (
        view,
        replace(view, routes=(), history=plain),
        replace(view, routes=(), history=plain[-config.HISTORY_MAX // 4 :], sites=(), sources=()),
    ):
        if len(msgspec.json.encode(members.packed(short))) <= config.VIEW_BYTES_MAX:
            return short
    return replace(view, routes=(), history=(), sites=(), sources=())


def in_parts(message: AgentMessage) -> list[AgentMessage]:
    """Return what to send instead of a message that is too long: two halves of it, or less. Nothing if neither can be.

    Of facts the later ones replace the earlier ones, so these cannot be parted: what ranks have wrapped is left out.
    """
    if isinstance(message, Views) and len(message.ranks) > 1:
        return [msgspec.structs.replace(message, ranks=part) for part in _halves(message.ranks)]
    if isinstance(message, Stacks) and len(message.dumps) > 1:
        first, second = _halves(message.dumps)
        early = msgspec.structs.replace(message, dumps=first, more=True)
        return [early, msgspec.structs.replace(message, dumps=second)]
    if isinstance(message, Testimonies) and len(message.ranks) > 1:
        said, others = _halves(message.ranks)
        return [
            msgspec.structs.replace(message, ranks=said),
            msgspec.structs.replace(message, ranks=others, communicators=()),
        ]
    if isinstance(message, Facts) and any(each.facts.models for each in message.alike):
        plain = [Alike(ranks=each.ranks, facts=each.facts._replace(models=())) for each in message.alike]
        return [msgspec.structs.replace(message, alike=tuple(plain))]
    return []


def _halves(items: tuple[T, ...]) -> tuple[tuple[T, ...], tuple[T, ...]]:
    middle = len(items) // 2
    return items[:middle], items[middle:]
