"""A real gloo job hangs: real Prometheus and Alertmanager, by the shipped rules, tell a webhook once and of its end."""

import json
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.integration.prometheus import Alertmanager, Prometheus, Webhook
from tests.integration.real_jobs import end, incidents, kill_all, runtime, server, torchrun, until
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]
__all__ = ["runtime"]  # a fixture


def test_a_hang_is_one_alert_and_its_end_is_told(runtime: Path, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    head = server(port, tmp_path / "incidents.db")
    with (
        Webhook() as webhook,
        Alertmanager(tmp_path, webhook.url) as alertmanager,
        Prometheus(tmp_path, {"ncclwatch": f"127.0.0.1:{port}"}, alertmanager.address) as prometheus,
    ):
        job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=url, NCCLWATCH_JOB="team-a/llm", USER="alice")
        try:
            (incident,) = until(lambda: incidents(url))
            until(lambda: webhook.alerts("firing"))
            _, receiver, alert = webhook.alerts("firing")[0]
            assert receiver == "on-call"
            assert alert["labels"] == {
                "alertname": "NcclwatchJobHung",
                "instance": f"127.0.0.1:{port}",
                "job_id": "team-a/llm",
                "job_namespace": "team-a",
                "job_user": "alice",
                "severity": "critical",
            }
            assert "rank 1 on " in alert["annotations"]["description"]
            assert alert["annotations"]["incident_url"] == f"{url}/incidents/{incident['id']}"
            # What would be a second alert has had time to come: the rules were evaluated three times more.
            evaluated = time.time()
            until(lambda: prometheus.query(f"min(timestamp(job_id:ncclwatch_ranks_stalled:sum)) > {evaluated + 3}"))
            assert {each[2]["labels"]["alertname"] for each in webhook.alerts("firing")} == {"NcclwatchJobHung"}
            assert {each[2]["fingerprint"] for each in webhook.alerts("firing")} == {alert["fingerprint"]}
            assert webhook.alerts("resolved") == []
            _kill(job, runtime)
            until(lambda: webhook.alerts("resolved"))
            until(lambda: [i for i in incidents(url) if i["state"] != "open"])
            ended = {each[2]["labels"]["alertname"] for each in webhook.alerts("resolved")}
            assert ended == {"NcclwatchJobHung"}
            assert {each[2]["labels"]["alertname"] for each in webhook.alerts("firing")} == {"NcclwatchJobHung"}
        finally:
            head.kill()
            head.wait()
            end(job, runtime)
    assert [payload["version"] for _, _, payload in webhook.got] == ["4"] * len(webhook.got)


def _kill(job, runtime: Path) -> None:
    job.send_signal(signal.SIGKILL)
    kill_all(runtime, "hang.py")


def test_the_watchdog_reaches_its_own_receiver(tmp_path: Path) -> None:
    with (
        Webhook() as webhook,
        Alertmanager(tmp_path, webhook.url) as alertmanager,
        Prometheus(tmp_path, {}, alertmanager.address),
    ):
        until(lambda: webhook.got)
        assert {receiver for _, receiver, _ in webhook.got} == {"dead-man-switch"}
        with urllib.request.urlopen(f"{alertmanager.url}/api/v2/alerts") as answer:
            known = {each["labels"]["alertname"] for each in json.load(answer)}
        assert known == {"NcclwatchWatchdog"}
