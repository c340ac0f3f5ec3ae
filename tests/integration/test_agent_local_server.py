"""A server of the agent's own: started, asked for its port, stopped; and what is said where there is none."""

import asyncio
import sys
from pathlib import Path

import pytest

from ncclwatch_agent.uplink import local_server
from ncclwatch_agent.uplink.local_server import LocalServer, is_this_host, missing_parts

pytestmark = pytest.mark.integration

LISTENS = """
import argparse, os, signal, sys, time
options = argparse.ArgumentParser()
options.add_argument('--port'), options.add_argument('--ephemeral', action='store_true')
options.add_argument('--ready-fd', type=int)
chosen = options.parse_args()
{before}
os.write(chosen.ready_fd, (chosen.port if chosen.port != '0' else '4711').encode() + b'\\n')
open(sys.argv[0] + '.pid', 'w').write(f'{{os.getpid()}} {{os.getsid(0)}}')
print('x' * 200_000, flush=True)
time.sleep(600)
"""


def program(tmp_path: Path, before: str = "") -> tuple[LocalServer, Path]:
    """Return a local server that runs a stand-in, and where that writes its pid."""
    script = tmp_path / "server.py"
    script.write_text(LISTENS.format(before=before))
    return LocalServer((sys.executable, str(script))), tmp_path / "server.py.pid"


def test_a_server_is_started_in_a_session_of_its_own_and_stopped(tmp_path: Path) -> None:
    server, pid_file = program(tmp_path)

    async def scenario() -> None:
        assert await server.start(0) == ""
        assert (server.port, server.alive) == (4711, True)
        while not pid_file.exists() or not pid_file.read_text():
            await asyncio.sleep(0.01)
        pid, session = pid_file.read_text().split()
        assert pid == session
        await server.stop()
        assert not server.alive
        assert not Path(f"/proc/{pid}").exists()

    asyncio.run(scenario())


def test_a_server_that_does_not_heed_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "STOP_S_MAX", 0.3)
    server, _ = program(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)")

    async def scenario() -> None:
        assert await server.start(8470) == ""
        assert server.port == 8470
        await server.stop()
        assert not server.alive

    asyncio.run(scenario())


def test_a_server_that_does_not_come_up_is_told_of_and_not_tried_for_ever(tmp_path: Path) -> None:
    server, _ = program(tmp_path, "sys.exit('port 8470 is taken')")

    async def scenario() -> list[str]:
        return [await server.start(0) for _ in range(local_server.STARTS_MAX + 1)]

    *failed, refused = asyncio.run(scenario())
    assert set(failed) == {"no server could be started here (port 8470 is taken); see agent.log"}
    assert "start ncclwatch-server by hand" in refused


def test_a_program_that_cannot_be_started_is_told_of() -> None:
    assert "cannot start /no/such" in asyncio.run(LocalServer(("/no/such",)).start(0))


def test_where_the_server_is_not_installed_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_parts() == ""
    monkeypatch.setattr(local_server, "_NEEDED", ("ncclwatch_server", "no_such_module"))
    assert "pip install 'ncclwatch[server]'" in missing_parts()
    assert "no_such_module is not installed" in missing_parts()


HOSTS = [
    ("http://127.0.0.1:8470", True),
    ("http://localhost:8470", True),
    ("http://[::1]:8470", True),
    ("http://0.0.0.0:8470", True),
    ("http://192.0.2.1:8470", False),  # reserved for documentation
    ("http://no-such-host.invalid:8470", False),
    ("nonsense", False),
]


@pytest.mark.parametrize(("url", "here"), HOSTS)
def test_it_is_known_whether_a_url_means_this_host(url: str, here: bool) -> None:
    assert asyncio.run(is_this_host(url)) is here
