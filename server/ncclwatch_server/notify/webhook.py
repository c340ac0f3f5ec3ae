"""Sends a webhook the report of `incidents.report` on one incident, signed as Standard Webhooks has it.

`webhook-id` is the same at each attempt, so that a receiver can drop what it has; `webhook-signature` is HMAC-SHA256
over "id.timestamp.body" (https://www.standardwebhooks.com, for which there are libraries in most languages).
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, replace

import httpx
import msgspec

from ncclwatch.contract.words.printable import json_bytes
from ncclwatch_server.incidents.report import SCHEMA, IncidentReport, report_incident
from ncclwatch_server.notify.message import Message, burnt_hours, clean, iso
from ncclwatch_server.notify.posting import post
from ncclwatch_server.notify.stages import Stage
from ncclwatch_server.notify.targets import Webhook, plain, signing_key

BODY_BYTES_MAX = 1024 * 1024
TEXT_MAX = 4000
EVIDENCE_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Which message this is."""

    id: str  # the same at each attempt
    event: Stage
    at: str  # ISO 8601, UTC
    gpu_hours: float  # all ranks of the job, since the onset
    step: int  # of the rank that was furthest; 0: unknown
    link: str  # "": nobody said how people reach the server
    test: bool
    shortened: bool  # something was left out of the report, which the API has whole


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookReport:
    """The report on a job, about one incident, and which message this is."""

    schema: int
    job: str
    world_size: int
    incidents: tuple[IncidentReport, ...]
    notification: Notification


class WebhookChannel:
    """Posts signed reports."""

    refresh_s = 0.0

    def __init__(self, target: Webhook, client: httpx.AsyncClient) -> None:
        self._url = plain(target.url)
        self._key = signing_key(plain(target.secret))
        self._client = client

    async def send(self, message: Message) -> None:
        """Post one message."""
        body = body_of(message)
        stamp = str(int(message.at))
        headers = {
            "webhook-id": message.id,
            "webhook-timestamp": stamp,
            "webhook-signature": sign(self._key, message.id, stamp, body),
        }
        await post(self._client, self._url, body, headers)


def sign(key: bytes, name: str, stamp: str, body: bytes) -> str:
    """Return the signature of a body."""
    signed = hmac.new(key, f"{name}.{stamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(signed).decode()


def body_of(message: Message) -> bytes:
    """Return the JSON of a message: whole, or without stacks, or only what matters, so that it has a bound."""
    whole = report_incident(message.incident)
    bare = replace(whole, stacks=(), stack_tree=(), evidence=whole.evidence[:EVIDENCE_MAX])
    for report in (whole, bare):
        try:
            body = _encode(message, report, shortened=report is not whole)
        except UnicodeEncodeError:  # a lone surrogate, which JSON cannot say
            continue
        if len(body) <= BODY_BYTES_MAX:
            return body
    return _encode(message, _essence(whole), shortened=True)


def _encode(message: Message, report: IncidentReport, *, shortened: bool) -> bytes:
    incident = message.incident
    notification = Notification(
        id=message.id,
        event=message.stage,
        at=iso(message.at),
        gpu_hours=round(burnt_hours(incident, message.at), 6),
        step=message.step,
        link=message.link,
        test=message.test,
        shortened=shortened,
    )
    body = msgspec.json.encode(
        WebhookReport(
            schema=SCHEMA,
            job=clean(incident.job, 200),
            world_size=incident.world_size,
            incidents=(report,),
            notification=notification,
        )
    )
    return json_bytes(body)


def _essence(report: IncidentReport) -> IncidentReport:
    """Return a report of which every part is cleaned and cut."""

    def short(text: str) -> str:
        return clean(text, TEXT_MAX)

    culprits = tuple(
        replace(each, host=short(each.host), device=short(each.device), doing=short(each.doing), call_site=None)
        for each in report.culprits[:EVIDENCE_MAX]
    )
    return replace(
        report,
        job=clean(report.job, 200),
        summary=short(report.summary),
        explanation=short(report.explanation),
        advice=short(report.advice),
        culprits=culprits,
        victims=report.victims[:1000],
        group=short(report.group),
        op=short(report.op),
        first_divergence=None,
        evidence=(),
        excerpts=(),
        stacks=(),
        stack_tree=(),
        where=short(report.where),
    )
