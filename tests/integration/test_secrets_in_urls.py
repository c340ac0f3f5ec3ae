"""A password in the URL of a server is in no answer of the command line and in no log of an agent."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.agent_node import Node

pytestmark = pytest.mark.integration
URL = "http://admin:hunter2@127.0.0.1:9"  # nobody listens


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("status",), 2), (("top", "--count", "1"), 2), (("status", "--server", URL), 2), (("config", "show"), 0),
     (("doctor",), 3), (("run", "--server", URL, "true"), 2), (("simulate", "--server", URL), 2)],
)  # fmt: skip
def test_the_command_line_says_what_is_wrong_and_not_the_password(arguments: tuple[str, ...], code: int) -> None:
    command = [sys.executable, "-c", "from ncclwatch.cli.main import main; main(prog_name='ncclwatch')", *arguments]
    environ = os.environ | ({} if "--server" in arguments else {"NCCLWATCH_SERVER": URL})
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert "hunter2" not in said and "admin" not in said
    assert "a user name or a password" in said and "NCCLWATCH_TOKEN" in said
    assert done.returncode == code


def test_an_agent_dials_without_the_password_that_an_older_rank_left_in_its_ring(tmp_path: Path) -> None:
    node = Node(tmp_path / "runtime")
    try:
        node.rank(0, URL)
        node.spawn_agent()
        deadline = time.monotonic() + 30
        while "no server at http://127.0.0.1:9" not in node.log() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "no server at http://127.0.0.1:9" in node.log()
        assert "hunter2" not in node.log()
    finally:
        node.close()
