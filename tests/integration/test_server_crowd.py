"""Connections that say nothing take nobody's place: neither of agents, nor of readers, nor of descriptors."""

import contextlib
import os
import re
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest
import trustme

from ncclwatch.contract import wire
from tests.integration.fake_agent import FakeAgent, hello, open_line, reply, until
from tests.integration.real_jobs import running

pytestmark = pytest.mark.integration

TOKEN = "Qm7wYx2LkT9sVb4NcR6hJd"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


@contextlib.contextmanager
def served(directory: Path, *flags: str, descriptors: tuple[int, int] = (256, 256)) -> Iterator[str]:
    """Serve with so many descriptors; yield the address. Its log is in `log` of the directory."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ncclwatch_server", "--port", "0", "--store", str(directory / "i.db"), *flags],
            env={**environ, "NCCLWATCH_TOKEN": TOKEN}, stdin=subprocess.DEVNULL, stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, descriptors),
        )  # fmt: skip
    try:
        until(lambda: b"listens on" in (directory / "log").read_bytes(), timeout_s=30)
        found = re.search(r"listens on (\S+)", (directory / "log").read_text())
        assert found is not None
        yield found[1]
    finally:
        process.kill()
        process.wait()


def dial(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=20)


def figure(url: str, name: str, trust: str | bool = True) -> float:
    """Return a figure that the server tells of itself."""
    context = ssl.create_default_context(cafile=trust) if isinstance(trust, str) else True
    text = httpx2.get(f"{url}/metrics", headers=SHOWN, timeout=10, verify=context).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_silent_connections_before_tls_leave_room_for_all_others_and_go_in_ten_seconds(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    ca = str(tmp_path / "ca.pem")
    with served(tmp_path, "--tls-cert", str(tmp_path / "both.pem")) as address, contextlib.ExitStack() as lines:
        url = address.replace("127.0.0.1", "localhost")
        for _ in range(300):
            lines.enter_context(dial(address))
        began = time.monotonic()
        assert figure(url, 'ncclwatch_connections{kind="newcomer"}', ca) <= 48
        assert time.monotonic() - began < 5
        assert figure(url, 'ncclwatch_connections_dropped_total{why="newcomers"}', ca) >= 250
        until(lambda: figure(url, 'ncclwatch_connections{kind="newcomer"}', ca) <= 1, timeout_s=15)
    assert "have not shown who they are" in (tmp_path / "log").read_text()


def test_silent_connections_do_not_push_out_who_has_shown_a_token(tmp_path: Path) -> None:
    with served(tmp_path) as url, contextlib.ExitStack() as lines, httpx2.Client(base_url=url, headers=SHOWN) as reader:
        assert reader.get("/api/v1/jobs").status_code == 200
        with FakeAgent(url, token=TOKEN) as agent:
            until(lambda: agent.progress > 0)
            for _ in range(500):
                lines.enter_context(dial(url))
            before = agent.progress
            until(lambda: agent.progress > before + 1)
            assert not agent.refused
            assert reader.get("/api/v1/jobs").status_code == 200
            with FakeAgent(url, token=TOKEN, job="another") as other:
                until(lambda: other.progress > 1)


def test_more_agents_than_descriptors_allow_are_told_so_and_readers_still_come_in(tmp_path: Path) -> None:
    refused, admitted = [], []
    with served(tmp_path) as url, contextlib.ExitStack() as lines:
        for _ in range(237):
            line = lines.enter_context(open_line(url, token=TOKEN))
            hello(line)
            said = reply(line)
            (refused if isinstance(said, wire.Refused) else admitted).append(said)
        assert figure(url, "ncclwatch_agents_connected") == len(admitted) == 176
        assert figure(url, "ncclwatch_connections_limit") == 192
    assert "RLIMIT_NOFILE is 256: raise it with ulimit -n" in refused[0].reason
    text = (tmp_path / "log").read_text()
    assert "up to 176 agents and 192 connections in all" in text
    assert "RLIMIT_NOFILE is 256" in text


def test_the_soft_limit_of_descriptors_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    with served(tmp_path, descriptors=(256, 1000)) as url:
        assert figure(url, "ncclwatch_connections_limit") == 936
        (process,) = running(tmp_path, "ncclwatch_server")
        assert process.rlimit(psutil.RLIMIT_NOFILE) == (1000, 1000)


@pytest.mark.parametrize(
    "request_",
    [b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n", b"GET /login HTTP/1.1\r\nHost: h\r\n\r\n"],
    ids=["healthz", "login"],
)
def test_requests_that_are_sent_and_never_read_cost_kilobytes(tmp_path: Path, request_: bytes) -> None:
    with served(tmp_path) as url, contextlib.ExitStack() as lines:
        assert httpx2.get(f"{url}/healthz").status_code == 200
        (process,) = running(tmp_path, "ncclwatch_server")
        before = process.memory_info().rss
        for _ in range(60):
            line = lines.enter_context(dial(url))
            line.settimeout(0.1)
            with contextlib.suppress(OSError):
                line.sendall(request_ * 20_000)
        assert httpx2.get(f"{url}/healthz", timeout=10).status_code == 200
        assert (process.memory_info().rss - before) / 2**20 < 20


def test_a_long_body_of_a_stranger_is_refused_at_its_head(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        for headers, status in (({}, 413), (SHOWN, 404), ({"Authorization": "Bearer wrong"}, 401)):
            said = httpx2.request("DELETE", f"{url}/api/v1/jobs/none", content=b"x" * 100_000, headers=headers)
            assert said.status_code == status


def test_a_head_of_many_headers_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as url, dial(url) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 5000 + b"\r\n")
        assert b" 431 " in line.recv(4096)
