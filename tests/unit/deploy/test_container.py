"""The shipped container files: what they copy and mount is there, and the configurations fit together."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PLACE = ROOT / "deploy" / "container"
DOCKERFILE = (PLACE / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((PLACE / "compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LISTENS = {"ncclwatch": 8470, "prometheus": 9090, "alertmanager": 9093, "grafana": 3000}


def mounts() -> list[tuple[str, str, str]]:
    """Return the service, the source and the place of all mounts."""
    found = []
    for name, service in SERVICES.items():
        for volume in service["volumes"]:
            source, place, *_ = volume.split(":")
            found.append((name, source, place))
    return found


def mounted_at(service: str, place: str) -> Path:
    """Return the file or directory of this repository that a container sees at a place."""
    (source,) = [source for name, source, there in mounts() if (name, there) == (service, place)]
    return (PLACE / source).resolve()


def test_all_sources_of_mounts_are_files_here_or_named_volumes() -> None:
    for _, source, _ in mounts():
        if source.startswith("."):
            assert (PLACE / source).exists(), source
        else:
            assert source in COMPOSE["volumes"], source


def test_all_are_in_the_network_of_the_server_and_only_that_one_is_reached_from_other_hosts() -> None:
    assert SERVICES.keys() == LISTENS.keys()
    for name, service in SERVICES.items():
        if name != "ncclwatch":
            assert service["network_mode"] == "service:ncclwatch"
            assert "ports" not in service
    ports = SERVICES["ncclwatch"]["ports"]
    assert sorted(int(port.rpartition(":")[2]) for port in ports) == sorted(LISTENS.values())
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == ["8470:8470"]


def test_every_service_that_reads_the_token_has_it() -> None:
    for service in SERVICES.values():
        for secret in service.get("secrets", ()):
            assert secret in COMPOSE["secrets"]
    said = [str(SERVICES[name]["environment"]) for name in ("ncclwatch", "grafana")]
    said.append((PLACE / "prometheus.yml").read_text())
    assert all("/run/secrets/token" in each for each in said)
    assert all("token" in SERVICES[name]["secrets"] for name in ("ncclwatch", "grafana", "prometheus"))


def test_what_prometheus_finds_there_is_a_configuration_with_our_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: apt-get install -y --no-install-recommends prometheus"
    secret = tmp_path / "token"
    secret.write_text("0" * 64)
    said = mounted_at("prometheus", "/etc/prometheus/prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(said.replace("/run/secrets/token", str(secret)))
    shutil.copytree(mounted_at("prometheus", "/etc/prometheus/rules"), tmp_path / "rules")
    done = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout, done.stdout


def test_grafana_finds_the_dashboards_where_its_provider_looks_and_prometheus_where_it_listens() -> None:
    provisioning = mounted_at("grafana", "/etc/grafana/provisioning")
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "ncclwatch.yaml").read_text())["providers"]
    assert len(list(mounted_at("grafana", provider["options"]["path"]).glob("*.json"))) == 5
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == f"http://127.0.0.1:{LISTENS['prometheus']}"


def test_prometheus_knows_where_the_server_and_alertmanager_listen() -> None:
    said = yaml.safe_load((PLACE / "prometheus.yml").read_text())
    (scraped,) = said["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"127.0.0.1:{LISTENS['ncclwatch']}"]}]
    (alertmanager,) = said["alerting"]["alertmanagers"]
    assert alertmanager["static_configs"] == [{"targets": [f"127.0.0.1:{LISTENS['alertmanager']}"]}]


def test_the_server_runs_as_a_user_of_its_own_with_nothing_but_its_directory_to_write_to() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER ncclwatch$", last, re.MULTILINE)
    home = re.search(r"^VOLUME (\S+)$", last, re.MULTILINE)
    assert home is not None and f"{home[1]}/incidents.db" in last.partition("ENTRYPOINT")[2]
    server = SERVICES["ncclwatch"]
    assert (server["read_only"], server["cap_drop"]) == (True, ["ALL"])
    assert [there for name, _, there in mounts() if name == "ncclwatch"] == [home[1]]


@pytest.mark.parametrize("place", ["ncclwatch", "agent", "server", "hatch_build.py", "pyproject.toml", "docs/verdicts"])
def test_the_build_gets_all_that_the_wheel_is_made_of(place: str) -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert place in kept
    assert all((ROOT / each).exists() for each in kept)
