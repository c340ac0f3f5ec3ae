"""Builds a dashboard: variables and annotations above, panels one after the other below."""

from collections.abc import Iterable, Sequence

from grafana.panels import COLUMNS, SOURCE, Json, Panel

SCHEMA = 39
Row = tuple[str, Sequence[Panel]]


def dashboard(
    uid: str, title: str, description: str, variables: Iterable[dict[str, Json]], rows: Iterable[Row], *,
    incidents_of: str, refresh: str = "10s",
) -> dict[str, Json]:  # fmt: skip
    """Return a dashboard. `incidents_of` selects the incidents that are drawn over its panels."""
    links: list[Json] = [
        {
            "title": "ncclwatch", "type": "dashboards", "tags": ["ncclwatch"], "asDropdown": True, "icon": "external link",
            "includeVars": True, "keepTime": True, "targetBlank": False, "tooltip": "", "url": "",
        }
    ]  # fmt: skip
    return {
        "id": None,
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["ncclwatch"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": refresh,
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": links,
        "annotations": {"list": [_incidents(incidents_of)]},
        "templating": {"list": [_source(), *variables]},
        "panels": list(_laid_out(rows)),
    }


def variable(name: str, label: str, query: str, *, multi: bool = False, everything: bool = True) -> dict[str, Json]:
    """Return a variable whose values Prometheus knows."""
    found: dict[str, Json] = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": f"{name}-values"},
        "refresh": 2,
        "sort": 1,
        "multi": multi,
        "includeAll": everything,
        "hide": 0,
    }
    if everything:
        found |= {"allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return found


def server_variable() -> dict[str, Json]:
    """Return the variable of the ncclwatch servers, by the address at which they are scraped."""
    return variable("instance", "Server", "label_values(ncclwatch_build_info, instance)", multi=True)


def _source() -> dict[str, Json]:
    return {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
        "regex": "", "hide": 0, "multi": False, "includeAll": False, "current": {},
    }  # fmt: skip


def _incidents(selector: str) -> dict[str, Json]:
    return {
        "name": "Incidents",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f"ncclwatch_incident_info{{{selector}}}",
        "step": "10s",
        "titleFormat": "{{severity}}: {{cause}}",
        "textFormat": '{{job_id}}: <a href="http://{{instance}}/incidents/{{incident_id}}">{{incident_id}}</a>',
        "tagKeys": "severity,certainty",
    }


def _laid_out(rows: Iterable[Row]) -> Iterable[Json]:
    """Put panels side by side as long as they fit, each row under its title."""
    number, y = 0, 0
    for title, panels in rows:
        number += 1
        yield {
            "id": number, "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
        }  # fmt: skip
        y += 1
        x, tallest = 0, 0
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            yield panel.json(number, x, y)
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
