"""Sends an incident to PagerDuty by its Events API v2: one alert for each incident."""

import httpx
import msgspec

from ncclwatch_server.notify.message import Message, clean, cut, iso
from ncclwatch_server.notify.posting import post
from ncclwatch_server.notify.stages import Stage
from ncclwatch_server.notify.targets import PagerDuty, plain

SUMMARY_MAX = 1024  # PagerDuty's own limit


class PagerDutyChannel:
    """Posts events to one service."""

    refresh_s = 0.0

    def __init__(self, target: PagerDuty, client: httpx.AsyncClient) -> None:
        self._key, self._url = plain(target.routing_key), plain(target.url)
        self._client = client

    async def send(self, message: Message) -> None:
        """Post one event."""
        await post(self._client, self._url, body_of(message, self._key))


def body_of(message: Message, key: str) -> bytes:
    """Return the JSON of an event. A second trigger of the same key adds to the alert and pages nobody again."""
    incident, verdict = message.incident, message.incident.verdict
    event: dict[str, object] = {
        "routing_key": key,
        "event_action": "resolve" if message.stage is Stage.RESOLVED else "trigger",
        "dedup_key": f"ncclwatch-{'test-' if message.test else ''}{incident.id}",
    }
    if message.stage is not Stage.RESOLVED:
        details: dict[str, str] = {}
        for name, text in message.facts:
            details[name] = f"{details[name]}; {text}" if name in details else text
        if message.tree:
            details["stacks"] = message.tree
        hosts = sorted({culprit.host for culprit in verdict.culprits if culprit.host})
        event["payload"] = {
            "summary": cut(message.title, SUMMARY_MAX),
            "source": clean(hosts[0] if hosts else incident.job, 200) or "ncclwatch",
            "severity": verdict.severity.value,
            "timestamp": iso(incident.opened_at),
            "component": "training",
            "group": clean(incident.job, 200),
            "class": verdict.cause.value,
            "custom_details": details,
        }
        event["client"] = "ncclwatch"
        if message.link:
            event["client_url"] = message.link
            event["links"] = [{"href": message.link, "text": "Incident"}]
    return msgspec.json.encode(event)
