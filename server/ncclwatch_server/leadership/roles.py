"""Says which server leads, to other servers and to people: the answer to /leaderz."""

import httpx
import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.network import tls
from ncclwatch_server.leadership.elector import Elector
from ncclwatch_server.security.neighbours import LEADER_PATH

ASK_S = 1.0
_ANSWER_BYTES_MAX = 4096


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answers."""

    leads: bool
    term: int


def role_words(elector: Elector) -> dict[str, object]:
    """Return what a server says about itself and about the leader."""
    return {
        "server": elector.me.id, "leads": elector.lease is not None, "confirmed": elector.leads,
        "term": elector.term, "leader": elector.leader_url,
    }  # fmt: skip


def ask_term(url: str) -> int | None:
    """Return the term in which the server at a URL leads, None if it does not lead, or does not answer soon."""
    try:
        with httpx.Client(verify=tls.trust(), timeout=ASK_S, trust_env=False) as client:
            answer = client.get(url.rstrip("/") + LEADER_PATH)
        said = msgspec.json.decode(answer.content[:_ANSWER_BYTES_MAX], type=Role)
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError, ConfigError, ValueError):
        return None
    return said.term if said.leads else None


def leader_route(elector: Elector) -> Route:
    """Return the route by which a server says who leads."""

    async def leaderz(_: Request) -> JSONResponse:
        return JSONResponse(role_words(elector))

    return Route(LEADER_PATH, leaderz)
