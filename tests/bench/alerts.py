"""Measures how soon a hang is an alert. python -m tests.bench --only alerts

Real torchrun, agent, server, Prometheus and Alertmanager.
The shipped rules with a scrape interval of 1 s and the shipped `group_wait` of critical alerts.
"""

import statistics
import tempfile
from datetime import datetime
from pathlib import Path

from tests.bench.row import Row, at_most
from tests.integration.prometheus import Alertmanager, Prometheus, Webhook
from tests.integration.real_jobs import end, incidents, server, torchrun, until
from tests.ports import free_port

SCRAPE_S = 1.0
GROUP_WAIT_S = 1.0  # in the shipped alertmanager.yml
SLACK_S = 2.0  # a busy machine
ROUNDS = 5


def measure() -> tuple[float, float]:
    """Let one job hang. Returns the seconds from the onset to the incident, and from the incident to the webhook."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # rings need memory
        place = Path(name)
        head = server(port, place / "incidents.db")
        with (
            Webhook() as webhook,
            Alertmanager(place, webhook.url) as alertmanager,
            Prometheus(place, {"ncclwatch": f"127.0.0.1:{port}"}, alertmanager.address),
        ):
            job = torchrun(place / "runtime", "hang.py", 2, NCCLWATCH_SERVER=url, NCCLWATCH_JOB="llm")
            try:
                (incident,) = until(lambda: incidents(url))
                until(lambda: webhook.alerts("firing"))
            finally:
                head.kill()
                head.wait()
                end(job, place / "runtime")
    opened_at = datetime.fromisoformat(incident["opened_at"]).timestamp()
    return incident["onset_to_open_s"], webhook.alerts("firing")[0][0] - opened_at


def rows() -> list[Row]:
    """Return the rows of the table: medians, and of the alert the worst."""
    found = [measure() for _ in range(ROUNDS)]
    alerts = [alert for _, alert in found]
    bound = 2 * SCRAPE_S + GROUP_WAIT_S + SLACK_S
    budget, met = at_most(bound, max(alerts), "s")
    return [
        Row(what="onset of a hang to its incident, median", unit="s", ours=statistics.median(o for o, _ in found)),
        Row(what="incident to the webhook, median", unit="s", ours=statistics.median(alerts)),
        Row(what=f"incident to the webhook, worst of {ROUNDS}", unit="s", ours=max(alerts), budget=budget, met=met),
    ]
