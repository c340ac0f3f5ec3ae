"""The dashboards as committed: what the generator writes, and what Grafana and its readers expect of them."""

import json
import re
from pathlib import Path

import pytest
import yaml

from grafana.__main__ import PLACE, main, stale_files
from grafana.dashboards_of import built, rendered

BOARDS = built()
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]
IDS = [f"{name}: {panel['title']}" for name, panel in PANELS]
GROWING = {"rank", "host", "process_group", "first_rank", "incident_id", "gpu", "nodename"}


def test_the_committed_files_are_what_the_generator_writes() -> None:
    assert stale_files(rendered()) == [], "run make dashboards"
    assert main(["--check"]) == 0


def test_a_file_that_was_edited_or_is_no_longer_made_is_stale() -> None:
    wanted = rendered()
    name = sorted(wanted)[0]
    assert stale_files({**wanted, name: wanted[name] + " "}) == [name]
    assert stale_files({key: text for key, text in wanted.items() if key != name}) == [name]


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_a_dashboard_can_be_provisioned(name: str) -> None:
    board = json.loads((PLACE / name).read_text(encoding="utf-8"))
    assert board["id"] is None
    assert board["uid"] == name.removesuffix(".json")
    assert board["schemaVersion"] == 39
    assert not board["editable"]
    assert "ncclwatch" in board["tags"]
    assert [each["expr"].startswith("ncclwatch_incident_info{") for each in board["annotations"]["list"]] == [True]
    variables = [each["name"] for each in board["templating"]["list"]]
    assert variables[0] == "datasource"
    used = set(re.findall(r"\$\{?(?!__)([a-z_]+)\b", json.dumps([board["panels"], board["annotations"]])))
    assert used <= set(variables)


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_panels_have_numbers_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells, panel["title"]
        cells |= mine


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=IDS)
def test_a_panel_says_what_it_shows_and_asks_the_chosen_source(name: str, panel: dict) -> None:
    assert panel["description"].endswith(".")
    assert panel["targets"]
    for each in (panel, *panel["targets"]):
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        assert "DCGM_" not in target["expr"], "its names change: ask a recording rule"
        if "rate(" in target["expr"]:
            assert "[$__rate_interval]" in target["expr"]


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=IDS)
def test_what_grows_with_the_fleet_is_summed_or_cut_to_the_worst(name: str, panel: dict) -> None:
    for target in panel["targets"]:
        expr = target["expr"]
        labels = {label for group in re.findall(r"by \(([^)]*)\)", expr) for label in re.split(r",\s*", group)}
        bare = not re.match(r"(sum|max|min|avg|count|histogram_quantile|time\(\))\b", expr)
        # Suspects and open incidents are bounded by the server; `instance` is one of a few servers.
        bounded = re.match(r"(topk|bottomk)\(", expr) or "_OURS" in expr
        if labels & GROWING or (bare and "incident_id" not in expr and "suspect" not in expr):
            assert bounded or "on (instance) group_left ()" in expr, expr


def test_links_lead_to_the_pages_of_the_server() -> None:
    text = json.dumps(BOARDS)
    assert "http://${__data.fields.instance}/incidents/${__data.fields.incident_id}" in text
    assert "http://${__data.fields.instance}/hosts/${__data.fields.host}" in text
    uids = set(re.findall(r"/d/([a-z-]+)/", text))
    assert uids <= {board["uid"] for board in BOARDS.values()}


def test_provisioning_is_of_the_kind_that_grafana_reads() -> None:
    provisioning = Path(PLACE).parent / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]
    dashboards = yaml.safe_load((provisioning / "dashboards" / "ncclwatch.yaml").read_text())
    assert [provider["type"] for provider in dashboards["providers"]] == ["file"]
