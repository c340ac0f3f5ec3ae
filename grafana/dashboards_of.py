"""Lists the dashboards, and what their files are called."""

import json

from grafana import fleet, hosts, incident, job, server
from grafana.panels import Json

DASHBOARDS = {
    "ncclwatch-fleet.json": fleet.dashboard,
    "ncclwatch-job.json": job.dashboard,
    "ncclwatch-incident.json": incident.dashboard,
    "ncclwatch-hosts.json": hosts.dashboard,
    "ncclwatch-server.json": server.dashboard,
}


def built() -> dict[str, dict[str, Json]]:
    """Return all dashboards by the names of their files."""
    return {name: make() for name, make in DASHBOARDS.items()}


def rendered() -> dict[str, str]:
    """Return the text of all files by their names."""
    return {name: json.dumps(board, indent=2, ensure_ascii=False) + "\n" for name, board in built().items()}
