"""Sends an incident to Alertmanager by its API v2, again each minute as Prometheus does.

Labels make an alert what it is, so they hold only what never changes of an incident; all else is in annotations. If
this server dies, the alert ends by itself after five minutes: that the server is away is for Prometheus to tell.
"""

import httpx
import msgspec

from ncclwatch.contract import job_labels, job_names
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.notify.message import Message, clean, iso
from ncclwatch_server.notify.posting import post
from ncclwatch_server.notify.stages import Stage
from ncclwatch_server.notify.targets import Alertmanager, plain

ALERT_NAME = "NcclwatchIncident"
LABELS_MAX = 16  # of a job
REFRESH_S = 60.0
LASTS_S = 300.0


class AlertmanagerChannel:
    """Posts alerts to one Alertmanager."""

    def __init__(self, target: Alertmanager, client: httpx.AsyncClient, refresh_s: float = REFRESH_S) -> None:
        self.refresh_s = refresh_s
        self._url = plain(target.url).rstrip("/") + "/api/v2/alerts"
        self._headers = {"Authorization": f"Bearer {plain(target.token)}"} if target.token else {}
        self._client = client

    async def send(self, message: Message) -> None:
        """Post one alert."""
        await post(self._client, self._url, body_of(message), self._headers)


def _of_job(incident: Incident) -> dict[str, str]:
    """Return whose job it is, under the names that the job has in /metrics."""
    known = job_labels.parse(incident.labels)
    called = job_labels.metric_names([("", incident.labels)], LABELS_MAX)
    found = {"job_namespace": job_names.namespace(incident.job), "job_user": incident.user}
    found |= {label: known[name] for name, label in called.items()}
    return {name: clean(text, 200) for name, text in found.items() if text}


def body_of(message: Message) -> bytes:
    """Return the JSON of an alert."""
    incident, verdict = message.incident, message.incident.verdict
    over = message.stage is Stage.RESOLVED
    annotations: dict[str, str] = {"summary": message.title, "cause": verdict.cause.value}
    for name, text in message.facts:
        key = name.replace(" ", "_") or "more"
        annotations[key] = f"{annotations[key]}; {text}" if key in annotations else text
    annotations["certainty"] = verdict.certainty.value
    if message.tree:
        annotations["stacks"] = message.tree
    alert: dict[str, object] = {
        "labels": {
            "alertname": ALERT_NAME,
            "severity": verdict.severity.value,
            "job_id": clean(incident.job, 200),
            "incident_id": incident.id,
            **_of_job(incident),
            **({"test": "true"} if message.test else {}),
        },
        "annotations": annotations,
        "startsAt": iso(incident.opened_at),
        "endsAt": iso(message.at if over else message.at + LASTS_S),
    }
    if message.link:
        alert["generatorURL"] = message.link
    return msgspec.json.encode([alert])
