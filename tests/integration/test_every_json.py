"""Each command that takes --json prints JSON, beside the real torch and of a real server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ncclwatch.cli.main import main
from tests.integration.command_line import ncclwatch
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

# What to type after each command, and with which codes it may end. {incident} and {file} are put in.
CASES: dict[str, tuple[str, set[int]]] = {
    "analyze": ("{file}", {0}),
    "config show": ("", {0}),
    "diagnose": ("--pid {pid}", {0, 1}),
    "doctor": ("", {0, 1, 3}),
    "explain": ("stuck_save", {0}),
    "incidents": ("", {0}),
    "report": ("{incident}", {0}),
    "silence list": ("", {0}),
    "simulate": ("--ranks 8 --for 5", {0}),
    "stacks": ("hung", {0}),
    "status": ("", {0}),
    "top": ("--count 1", {0}),
    "version": ("", {0}),
}


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield all commands by what is typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        elif command is not None:
            yield f"{prefix}{name}", command


def test_each_command_with_json_is_tried_here():
    found = {name for name, command in commands(main) if any("--json" in p.opts for p in command.params)}
    assert found == set(CASES)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("json")) as process, FakeAgent(process.url, job="hung") as agent:
        agent.hang(1)
        until(lambda: process.incidents())
        yield process


@pytest.mark.parametrize("name", list(CASES))
def test_it_prints_json_and_nothing_else(server: ServerProcess, name: str, tmp_path: Path):
    arguments, codes = CASES[name]
    saved = tmp_path / "report.json"
    saved.write_bytes(server.get("/api/v1/jobs/hung/report").content)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as sleeper:
        try:
            values = {"incident": server.incidents()[0]["id"], "file": str(saved), "pid": str(sleeper.pid)}
            typed = [word.format(**values) for word in f"{name} {arguments}".split()]
            environ = {} if name in ("diagnose", "simulate") else {"server": server.url}
            done = ncclwatch(*typed, "--json", **environ, PATH=os.environ["PATH"])
        finally:
            sleeper.kill()
    assert done.returncode in codes, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    json.loads(done.stdout)
