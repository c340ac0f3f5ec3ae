"""Every expression of every dashboard, asked of a real Prometheus that scrapes a server with two simulated jobs."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from grafana.dashboards_of import built
from ncclwatch_server.simulation.job.faults import FaultKind
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.timeline import Manner, plan
from tests.integration.fake_agent import until
from tests.integration.prometheus import Exporter, Prometheus
from tests.integration.real_jobs import incidents, server
from tests.integration.simulated_nodes import SimulatedJob, SimulatedNodes
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SERIES_MAX = 50  # that one expression may put into a panel, whatever the size of the fleet
DCGM = """
DCGM_FI_DEV_FB_USED{gpu="0",UUID="a",Hostname="node00000"} 70000
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="a",Hostname="node00000"} 64
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="a",Hostname="node00000"} 79
""" + "".join(f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="{host}",Hostname="node{host:05d}"}} 97\n' for host in range(8))
NODE = """
node_uname_info{nodename="node00000"} 1
node_memory_MemAvailable_bytes 1e11
node_cpu_seconds_total{cpu="0",mode="idle"} {n}
node_cpu_seconds_total{cpu="0",mode="iowait"} {n}
node_network_receive_bytes_total{device="eth0"} {n}
"""


STEADY = Manner(step_s=0.5, pause_every=0)


def hung() -> SimulatedJob:
    """Sixty-four ranks of which one leaves a collective out after two seconds: more groups than are told one by one."""
    layout = Layout.parse("tp=4,pp=2,dp=8")
    return SimulatedJob(name="hung", timeline=plan(layout, STEADY, FaultKind.SKIP, healthy_s=2.0, seed=1))


def healthy() -> SimulatedJob:
    """Return sixteen ranks on their way for longer than the test lasts."""
    layout = Layout.parse("tp=8,dp=2")
    return SimulatedJob(name="healthy", timeline=plan(layout, STEADY, None, healthy_s=150.0, seed=2))


@contextmanager
def watched(directory: Path) -> Iterator[Prometheus]:
    """Give a Prometheus that scrapes a server with both jobs, once one of them hangs."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = server(port, directory / "incidents.db")
    try:
        with (
            SimulatedNodes(url, (hung(), healthy())),
            Exporter(DCGM) as dcgm,
            Exporter(NODE) as node,
            Prometheus(
                directory, {"ncclwatch": f"127.0.0.1:{port}", "dcgm": dcgm.address, "node": node.address}
            ) as found,
        ):
            until(lambda: incidents(url), timeout_s=60)
            yield found
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Give a Prometheus that knows all of it for some seconds."""
    with watched(tmp_path_factory.mktemp("prometheus")) as found:
        until(lambda: found.query("ncclwatch_suspect_rank_info"), timeout_s=20)
        # A rate needs two scrapes of everything, a rule one evaluation after that.
        seen = time.time()
        until(
            lambda: found.query(f"min(timestamp(job_id:ncclwatch_hang_seconds:increase1d)) > {seen + 2}"),
            timeout_s=20,
        )
        yield found


def substituted(expr: str, values: dict[str, str]) -> str:
    """Return an expression as Grafana sends it."""
    for name, value in values.items():
        expr = expr.replace(f"${name}", value)
    assert "$" not in expr, expr
    return expr


def chosen(board: dict, prometheus: Prometheus) -> dict[str, str]:
    """Return a value for each variable of a dashboard, the first that Prometheus offers."""
    values = {"__rate_interval": "20s", "__range": "5m"}
    for variable in board["templating"]["list"]:
        if variable["type"] == "datasource":
            continue
        wanted = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        assert wanted is not None, variable["query"]
        offered = prometheus.label_values(wanted[2], substituted(wanted[1], values))
        assert offered, f"{board['uid']}: variable {variable['name']} has no values"
        values[variable["name"]] = ".*" if variable["includeAll"] else sorted(offered)[-1]
    return values


def questions(prometheus: Prometheus) -> dict[tuple[str, str, str], str]:
    """Return all expressions of all dashboards as Grafana would send them, by dashboard, panel and expression."""
    found = {}
    for board in built().values():
        values = chosen(board, prometheus)
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                # What is left out of a panel because it is zero has an answer, too.
                asked = substituted(target["expr"], values).replace(") > 0)", "))")
                found[board["uid"], panel["title"], target["expr"]] = asked
        for each in board["annotations"]["list"]:
            found[board["uid"], "annotation", each["expr"]] = substituted(each["expr"], values)
    return found


def test_every_expression_of_every_dashboard_has_an_answer_of_a_bounded_size(prometheus: Prometheus) -> None:
    asked = questions(prometheus)
    sizes = dict.fromkeys(asked, 0)

    def all_answered() -> bool:
        # A scrape that a busy machine was too slow for leaves a gap of a second.
        for place in [place for place, size in sizes.items() if not size]:
            sizes[place] = len(prometheus.query(asked[place]))
        return all(sizes.values())

    with suppress(AssertionError):
        until(all_answered, timeout_s=20)
    assert [place for place, size in sizes.items() if not size] == []
    assert [place for place, size in sizes.items() if size > SERIES_MAX] == []
    assert len(sizes) > 80


def test_the_job_dashboard_offers_both_jobs_and_shows_the_hang_of_the_right_one(prometheus: Prometheus) -> None:
    board = built()["ncclwatch-job.json"]
    (state,) = [panel for panel in board["panels"] if panel["title"] == "State"]

    def shown() -> dict[str, str]:
        found = {}
        for job in prometheus.label_values("job_id", "ncclwatch_job_info"):
            expr = substituted(state["targets"][0]["expr"], {"instance": ".*", "job_id": job})
            found[job] = [series["value"][1] for series in prometheus.query(expr)]
        return found

    until(lambda: shown() == {"hung": ["2"], "healthy": ["0"]}, timeout_s=20)


def test_prometheus_keeps_the_incident_as_exemplar_of_its_detection_delay(prometheus: Prometheus) -> None:
    (known,) = prometheus.query("last_over_time(ncclwatch_incident_info[1m])")
    found = prometheus.exemplars("ncclwatch_detection_delay_seconds_bucket")
    assert {each["labels"]["incident_id"] for series in found for each in series["exemplars"]} == {
        known["metric"]["incident_id"]
    }


def test_one_scrape_of_the_server_stays_small(prometheus: Prometheus) -> None:
    (samples,) = prometheus.query('max_over_time(scrape_samples_scraped{job="ncclwatch"}[5m])')
    assert 100 < int(samples["value"][1]) < 600


def test_no_label_of_ours_was_renamed_for_a_collision_with_a_target_label(prometheus: Prometheus) -> None:
    assert prometheus.query('{__name__=~"ncclwatch_.*",exported_job!=""}') == []
    assert prometheus.query('{__name__=~"ncclwatch_.*",exported_instance!=""}') == []


def test_every_shipped_rule_is_evaluated_without_an_error(prometheus: Prometheus) -> None:
    rules = prometheus.rules()
    assert len(rules) > 20
    assert [rule for rule in rules if rule["health"] != "ok"] == []
