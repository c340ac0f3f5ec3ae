"""Makes the kinds of panels that the dashboards need, and lays them out on the page."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Thresholds = tuple[tuple[float | None, str], ...]

COLUMNS = 24
SOURCE: dict[str, Json] = {"type": "prometheus", "uid": "${datasource}"}
CALM: Thresholds = ((None, "green"),)
ANY_IS_BAD: Thresholds = ((None, "green"), (1, "red"))
ANY_IS_ODD: Thresholds = ((None, "green"), (1, "orange"))
SERVER = 'instance=~"$instance"'
JOB = 'instance=~"$instance",job_id=~"$job_id"'
INCIDENT_LINK = ("Open the incident", "http://${__data.fields.instance}/incidents/${__data.fields.incident_id}")
# Labels of ncclwatch_incident_info: what to read first, and what the incident's page tells better.
INCIDENT_COLUMNS = ("job_id", "summary", "advice", "line", "certainty", "incident_id", "instance")
INCIDENT_WITHOUT = ("cause", "incident_url", "op", "process_group", "severity")
SUSPECT_COLUMNS = ("rank", "host", "cause", "severity", "incident_id", "job_id", "instance")
STATE_COLORS = (  # of ranks and of nodes
    ("running", "green"), ("waiting", "yellow"), ("silent", "orange"), ("disk_wait", "orange"), ("stopped", "red"),
    ("unseen", "purple"), ("detached", "blue"), ("ended", "text"), ("connected", "green"), ("quiet", "orange"), ("lost", "red"),
)  # fmt: skip
_WIDTHS = (("summary", 480), ("advice", 420), ("line", 220))  # columns of sentences
JOB_LINK = ("Open the job", "/d/ncclwatch-job/ncclwatch-job?var-job_id=${__data.fields.job_id}")
HOST_LINK = ("Open the host", "http://${__data.fields.instance}/hosts/${__data.fields.host}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression."""

    expr: str
    legend: str = "__auto"
    shape: str = "time_series"  # time_series, table, heatmap
    instant: bool = False
    exemplars: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `description` says to whoever sees it at night what is good and what is bad."""

    kind: str
    title: str
    description: str
    queries: tuple[Query, ...]
    width: int
    height: int
    unit: str = "short"
    thresholds: Thresholds = CALM
    options: dict[str, Json] = field(default_factory=dict)
    custom: dict[str, Json] = field(default_factory=dict)
    mappings: tuple[tuple[str, str, str], ...] = ()  # value, words, colour
    links: tuple[tuple[str, tuple[str, str]], ...] = ()  # (column, (title, address))
    transformations: tuple[dict[str, Json], ...] = ()
    maximum: float | None = None
    widths: tuple[tuple[str, int], ...] = ()  # (column of a table, pixels); its text is wrapped
    colors: tuple[tuple[str, str], ...] = ()  # (series, color)

    def json(self, number: int, x: int, y: int) -> dict[str, Json]:
        """Return it as Grafana wants it."""
        defaults: dict[str, Json] = {
            "unit": self.unit,
            "custom": self.custom,
            "mappings": [_mapping(*each) for each in self.mappings],
            "thresholds": {
                "mode": "absolute",
                "steps": [{"value": value, "color": color} for value, color in self.thresholds],
            },
        }
        if self.maximum is not None:
            defaults |= {"min": 0, "max": self.maximum}
        overrides: list[Json] = [_link(column, *link) for column, link in self.links]
        overrides += [_width(column, pixels) for column, pixels in self.widths]
        overrides += [_color(series, color) for series, color in self.colors]
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": SOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [_target(query, number) for number, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": defaults, "overrides": overrides},
            "options": self.options,
            "transformations": list(self.transformations),
        }


def _target(query: Query, number: int) -> dict[str, Json]:
    return {
        "refId": chr(ord("A") + number),
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": query.shape,
        "instant": query.instant,
        "range": not query.instant,
        "exemplar": query.exemplars,
    }


def _mapping(value: str, words: str, color: str) -> Json:
    return {"type": "value", "options": {value: {"text": words, "color": color, "index": 0}}}


def _link(column: str, title: str, address: str) -> Json:
    links: list[Json] = [{"title": title, "url": address, "targetBlank": True}]
    return {"matcher": {"id": "byName", "options": column}, "properties": [{"id": "links", "value": links}]}


def _width(column: str, pixels: int) -> Json:
    wrapped: Json = {"type": "auto", "wrapText": True}
    properties: list[Json] = [
        {"id": "custom.width", "value": pixels},
        {"id": "custom.cellOptions", "value": wrapped},  # Grafana 11
        {"id": "custom.wrapText", "value": True},  # Grafana 12 and later
    ]
    return {"matcher": {"id": "byName", "options": column}, "properties": properties}


def _color(series: str, color: str) -> Json:
    fixed: Json = {"mode": "fixed", "fixedColor": color}
    return {"matcher": {"id": "byName", "options": series}, "properties": [{"id": "color", "value": fixed}]}


def number(
    title: str, description: str, expr: str, *, unit: str = "short", thresholds: Thresholds = CALM, width: int = 3,
    mappings: tuple[tuple[str, str, str], ...] = (),
) -> Panel:  # fmt: skip
    """Return a panel that shows one number."""
    options: dict[str, Json] = {
        "colorMode": "value", "graphMode": "area", "justifyMode": "auto", "textMode": "auto", "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }  # fmt: skip
    return Panel(
        kind="stat", title=title, description=description, queries=(Query(expr=expr),), width=width, height=4,
        unit=unit, thresholds=thresholds, options=options, mappings=mappings,
    )  # fmt: skip


def lines(
    title: str, description: str, *queries: Query, unit: str = "short", stacked: bool = False, width: int = 12,
    maximum: float | None = None,
) -> Panel:  # fmt: skip
    """Return a panel with lines over time."""
    custom: dict[str, Json] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
    if stacked:
        custom |= {"fillOpacity": 70, "stacking": {"mode": "normal", "group": "A"}}
    options: dict[str, Json] = {
        "legend": {"displayMode": "table", "placement": "right", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(
        kind="timeseries", title=title, description=description, queries=queries, width=width, height=8, unit=unit,
        custom=custom, options=options, maximum=maximum,
        colors=STATE_COLORS if any(query.legend == "{{state}}" for query in queries) else (),
    )  # fmt: skip


def heatmap(title: str, description: str, expr: str, *, unit: str, width: int = 12) -> Panel:
    """Return a panel of buckets over time. `expr` sums a histogram by `le`."""
    options: dict[str, Json] = {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "YlOrRd", "exponent": 0.5, "fill": "dark-red", "scale": "exponential",
                  "reverse": False, "steps": 64},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }  # fmt: skip
    query = Query(expr=expr, legend="{{le}}", shape="heatmap")
    return Panel(
        kind="heatmap", title=title, description=description, queries=(query,), width=width, height=8,
        options=options, custom={"scaleDistribution": {"type": "linear"}},
    )  # fmt: skip


def table(  # noqa: PLR0913 - each is a setting of its own
    title: str, description: str, *exprs: str, links: tuple[tuple[str, tuple[str, str]], ...] = (), width: int = 24,
    names: Sequence[str] = (), height: int = 8, columns: Sequence[str] = (), without: Sequence[str] = (),
) -> Panel:  # fmt: skip
    """Return a table of the present. Of several expressions, the columns are joined by the labels they share.

    The labels in `columns` come first, in that order, and those in `without` are left out. Sentences are wrapped.
    """
    excluded: dict[str, Json] = dict.fromkeys(("Time", "__name__", "job", *without), True)
    places: dict[str, Json] = {name: place for place, name in enumerate(columns)}
    renamed: dict[str, Json] = {}
    if len(exprs) == 1:
        renamed["Value"] = names[0] if names else "Value"
        if not names:
            excluded["Value"] = True
    for place, name in enumerate(names if len(exprs) > 1 else ()):
        renamed[f"Value #{chr(ord('A') + place)}"] = name
    order: dict[str, Json] = {"id": "organize", "options": {"excludeByName": excluded, "indexByName": places,
                                                         "renameByName": renamed}}  # fmt: skip
    return Panel(
        kind="table", title=title, description=description, width=width, height=height, links=links,
        queries=tuple(Query(expr=expr, shape="table", instant=True) for expr in exprs),
        options={"cellHeight": "sm", "showHeader": True, "footer": {"show": False, "reducer": ["sum"], "fields": ""}},
        custom={"align": "auto", "filterable": True, "cellOptions": {"type": "auto"}, "inspect": False},
        transformations=({"id": "merge", "options": {}}, order),
        widths=tuple((name, pixels) for name, pixels in _WIDTHS if name in columns),
    )  # fmt: skip


def bars(title: str, description: str, *queries: Query, unit: str = "short", width: int = 12) -> Panel:
    """Return a list of bars."""
    options: dict[str, Json] = {
        "orientation": "horizontal", "displayMode": "basic", "valueMode": "color", "showUnfilled": True,
        "minVizHeight": 16, "minVizWidth": 8, "namePlacement": "auto", "sizing": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }  # fmt: skip
    return Panel(
        kind="bargauge", title=title, description=description, width=width, height=8, unit=unit, options=options,
        queries=tuple(replace(query, instant=True) for query in queries),
    )  # fmt: skip


def states(title: str, description: str, query: Query, mappings: tuple[tuple[str, str, str], ...]) -> Panel:
    """Return bands of states over time, one for each series."""
    options: dict[str, Json] = {
        "mergeValues": True, "showValue": "auto", "alignValue": "left", "rowHeight": 0.9, "perPage": 20,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    }  # fmt: skip
    return Panel(
        kind="state-timeline", title=title, description=description, queries=(query,), width=24, height=8,
        options=options, mappings=mappings, custom={"lineWidth": 0, "fillOpacity": 70},
    )  # fmt: skip
