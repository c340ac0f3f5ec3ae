"""The units of systemd: they are well-formed, tight, and leave what agent and server need."""

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.integration import confined
from tests.integration.launch import PROGRAMS, environment
from tests.integration.real_jobs import kill_all, until
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
SERVER, AGENT = UNITS / "ncclwatch-server.service", UNITS / "ncclwatch-agent@.service"
EXPOSURE_MAX = {SERVER.name: 15, AGENT.name: 40}  # tenths of what `systemd-analyze security` says


def installed(unit: Path, directory: Path) -> Path:
    """Return a copy of a unit whose programs are those of this environment."""
    found = directory / unit.name.replace("@.", "@root.")
    found.write_text(unit.read_text().replace("/opt/ncclwatch/bin", str(Path(sys.executable).parent)))
    return found


@pytest.mark.parametrize("unit", [SERVER, AGENT], ids=lambda unit: unit.name)
def test_systemd_understands_each_unit_and_finds_it_tight(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    copy = installed(unit, tmp_path)
    verified = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    checked = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_MAX[unit.name]}", copy],
        capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout.splitlines()[-1]


def test_the_server_works_within_its_unit(tmp_path: Path) -> None:
    confined.needs_tools()
    port, token = free_port(), tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    words = confined.command(
        SERVER, sys.executable, "-m", "ncclwatch_server", "--host", "0.0.0.0", "--port", str(port),
        "--store", str(tmp_path / "incidents.db"),
    )  # fmt: skip
    environ = os.environ | {"NCCLWATCH_TOKEN_FILE": str(token)}
    with subprocess.Popen(words, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True) as server:
        try:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/api/v1/jobs", headers={"Authorization": f"Bearer {token.read_text()}"}
            )
            assert until(lambda: _answer(request)) == b"[]"
            assert (tmp_path / "incidents.db").exists()
            assert "Seccomp:\t2" in Path(f"/proc/{server.pid}/status").read_text()
        finally:
            server.kill()


def test_the_agent_takes_stacks_within_its_unit(tmp_path: Path) -> None:
    """Also those of native code, which py-spy reads by ptrace, and from the server that it starts itself."""
    confined.needs_tools()
    environ = environment(tmp_path, NCCLWATCH_TERMINAL="1")
    words = confined.command(AGENT, sys.executable, "-m", "ncclwatch_agent")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with subprocess.Popen(words, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL) as agent:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(PROGRAMS / "hang.py")], cwd=ROOT, text=True, stderr=subprocess.PIPE,
                env=environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]  # fmt: skip
        try:
            said = _until_told(ranks[0])
            assert "Seccomp:\t2" in Path(f"/proc/{agent.pid}/status").read_text()
        finally:
            kill_all(tmp_path)
            for rank in ranks:
                rank.wait()
                assert rank.stderr is not None
                rank.stderr.close()
    assert "culprit   rank 1" in said
    assert "> main (" in said  # of py-spy's stack


def _answer(request: urllib.request.Request) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            found: bytes = answer.read()
    except OSError:
        return b""
    return found


def _until_told(rank: "subprocess.Popen[str]") -> str:
    assert rank.stderr is not None
    lines = []
    for line in rank.stderr:
        lines.append(line)
        if line.startswith("  incident"):
            break
    return "".join(lines)
