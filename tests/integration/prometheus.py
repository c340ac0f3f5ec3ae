"""Real Prometheus and Alertmanager, with the rules that are shipped, in a directory and on ports of a test."""

import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

import yaml

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
TOOLS = {"promtool": "prometheus", "prometheus": "prometheus", "prometheus-alertmanager": "prometheus-alertmanager",
         "amtool": "prometheus-alertmanager"}  # fmt: skip


def tool(name: str) -> str:
    """Return the path of a tool. Raises `AssertionError` with what to install."""
    path = shutil.which(name)
    assert path is not None, f"{name} is missing: apt-get install -y --no-install-recommends {TOOLS[name]}"
    return path


class Served:
    """A process that listens on a port of its own, killed when the test is done with it."""

    def __init__(self, name: str, arguments: list[str], port: int, directory: Path, ready: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [tool(name), *arguments], cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 30
        while not answers(self.url + ready):
            assert self.process.poll() is None and time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def __enter__(self) -> "Served":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()


def answers(url: str) -> bool:
    """Whether somebody answers well."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


class Prometheus(Served):
    """Scrapes some targets each second, with the shipped rules evaluated as often."""

    def __init__(self, directory: Path, targets: dict[str, str], alertmanager: str = "", every: str = "1s") -> None:
        port = free_port()
        settings: dict[str, object] = {
            "global": {"scrape_interval": every, "evaluation_interval": every},
            "rule_files": [str(path) for path in hurried_rules(directory, every)],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in targets.items()
            ],
        }
        if alertmanager:
            settings["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
        config = directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(settings))
        arguments = [
            f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}", f"--web.external-url=http://127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
            # It finds its Alertmanager some seconds after its start; an alert of before is sent again after this.
            "--rules.alert.resend-delay=2s",
        ]  # fmt: skip
        super().__init__("prometheus", arguments, port, directory, "/-/ready")

    def query(self, expr: str, at: float | None = None) -> list[dict]:
        """Return the series that an expression has now, or at a moment. Raises `AssertionError` if it is no PromQL."""
        return self._get("query", query=expr, **({} if at is None else {"time": str(at)}))["result"]

    def query_range(self, expr: str, start: float, end: float, step_s: float) -> list[dict]:
        """Return the series that an expression had between two moments, each in seconds since 1970."""
        return self._get("query_range", query=expr, start=str(start), end=str(end), step=str(step_s))["result"]

    def label_values(self, label: str, selector: str) -> list[str]:
        """Return what a variable of a dashboard would offer."""
        return self._get(f"label/{label}/values", **{"match[]": selector})

    def exemplars(self, expr: str) -> list[dict]:
        """Return the exemplars of the last ten minutes."""
        now = time.time()
        return self._get("query_exemplars", query=expr, start=str(now - 600), end=str(now + 60))

    def rules(self) -> list[dict]:
        """Return all rules, each with its health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error


def hurried_rules(directory: Path, every: str) -> list[Path]:
    """Copy the shipped rules, evaluated as often as a test scrapes and kept firing for two seconds, not two minutes."""
    found = []
    for path in sorted((DEPLOY / "rules").glob("*.yml")):
        rules = yaml.safe_load(path.read_text())
        for group in rules["groups"]:
            group["interval"] = every
            for rule in group["rules"]:
                if "keep_firing_for" in rule:
                    rule["keep_firing_for"] = "2s"
        found.append(directory / path.name)
        found[-1].write_text(yaml.safe_dump(rules))
    return found


class Alertmanager(Served):
    """The shipped routes and inhibitions, all receivers at one address."""

    def __init__(self, directory: Path, webhook: str) -> None:
        port = free_port()
        settings = yaml.safe_load((DEPLOY / "alertmanager.yml").read_text())
        for receiver in settings["receivers"]:
            for hook in receiver.get("webhook_configs", ()):
                hook["url"] = f"{webhook}/{receiver['name']}"
        for route in (settings["route"], *settings["route"]["routes"]):
            route["group_interval"] = "1s"  # an end is told as soon as it is known
        config = directory / "alertmanager.yml"
        config.write_text(yaml.safe_dump(settings))
        arguments = [
            f"--config.file={config}", f"--storage.path={directory / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
        ]  # fmt: skip
        super().__init__("prometheus-alertmanager", arguments, port, directory, "/-/ready")

    @property
    def address(self) -> str:
        """Where Prometheus sends alerts."""
        return self.url.removeprefix("http://")


class Webhook:
    """Receives what Alertmanager sends: (seconds since 1970, receiver, payload)."""

    def __init__(self) -> None:
        self.got: list[tuple[float, str, dict]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "Webhook":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def alerts(self, status: str) -> list[tuple[float, str, dict]]:
        """Return (when, receiver, alert) of the alerts that came with a status, but for the watchdog."""
        return [
            (when, receiver, alert)
            for when, receiver, payload in self.got
            for alert in payload["alerts"]
            if alert["status"] == status and receiver != "dead-man-switch"
        ]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                got.append((time.time(), self.path.strip("/"), json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


class Exporter:
    """Serves one fixed text as /metrics, as dcgm-exporter and node_exporter would; `{n}` in it counts the scrapes."""

    def __init__(self, text: str) -> None:
        exporter, self._scrapes = self, 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter._scrapes += 1
                body = text.replace("{n}", str(exporter._scrapes)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "Exporter":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
