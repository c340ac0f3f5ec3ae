"""What comes after the end of a command: another one only if nobody wanted this to stop, and nothing of it is left."""

import subprocess
import sys
from pathlib import Path

import pytest

from ncclwatch.cli.running.training import is_ours

BEGIN = """
import os, signal, sys
from ncclwatch.cli.running.training import Training
training = Training([sys.executable, "-c", "import time; time.sleep(600)"], dict(os.environ))
"""
HEARD = "os.kill(os.getpid(), signal.SIGINT); training.wait_a_little()\n"
PENDING = "os.kill(os.getpid(), signal.SIGTERM)\n"
END = "assert training.end() == ()\nprint(training.may_not_follow(), end='')\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (BEGIN + END, ""),
        (BEGIN + HEARD + END, "SIGINT has come"),
        (BEGIN + PENDING + END, "SIGTERM has come"),
        (BEGIN + END.replace("print", PENDING + "print"), "SIGTERM has come"),
    ],
)
def test_no_command_follows_on_one_that_somebody_has_ended(script: str, why: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, why), done.stderr


def test_no_command_follows_while_something_of_it_is_left_and_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    script = BEGIN + (
        "from ncclwatch.cli.running import training as module\n"
        "module.TERMINATE_S = module.KILLED_S = 0.1\n"
        "send, module._send = module._send, lambda tree, number: None\n"  # as to a process that the kernel holds
        "(said,) = training.end()\n"
        "print(said, '|', training.may_not_follow())\n"
        "module._send, module.KILLED_S = send, 60.0\n"
        "training.end()\n"
        "print(training.may_not_follow())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "does not end after SIGKILL (sleeping): the kernel holds it, and its node needs a look" in done.stdout
    assert "| processes of it are still there\n\n" in done.stdout


@pytest.mark.parametrize("name", ["ncclwatch_agent", "ncclwatch_server", "ncclwatch-agent"])
def test_a_command_is_ended_whatever_its_directory_is_called(tmp_path: Path, name: str) -> None:
    """Else it would go on beside the one that is started after it."""
    place = tmp_path / name
    place.mkdir()
    (place / "train.py").write_text("import time; time.sleep(600)")
    script = BEGIN.replace('"-c", "import time; time.sleep(600)"', f'"{place}/train.py"') + (
        "assert training.end() == ()\ntraining.wait_a_little()\nprint(training.exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "143\n"), done.stderr


def test_the_agent_and_the_server_that_a_command_has_started_are_left_to_report_its_end() -> None:
    assert [
        is_ours(command)
        for command in (
            ["/usr/bin/python3", "-m", "ncclwatch_agent", "--spawned"],
            ["python", "-u", "-m", "ncclwatch_server", "--port", "1"],
            ["/opt/venv/bin/python", "/opt/venv/bin/ncclwatch-server", "--port", "1"],
            ["/opt/venv/bin/ncclwatch-agent"],
        )
    ] == [True] * 4
    assert not is_ours(["python", "-m", "ncclwatch_agent_study.train"])
    assert not is_ours(["python", "train.py", "ncclwatch-agent"])
    assert not is_ours([])
