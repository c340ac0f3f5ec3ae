"""The torch side has no race and touches nothing that is gone: all of it is instrumented, over a stand-in for torch."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.sanitized.sanitizers import PREFIX, SANITIZERS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
HERE = Path(__file__).parent
DESTROYED = 60  # groups


@pytest.mark.parametrize("name", list(SANITIZERS))
def test_groups_come_and_go_while_threads_issue_wait_and_ask(name: str, tmp_path: Path):
    sanitizer, driver = SANITIZERS[name], tmp_path / "driver"
    command = ("g++", "-std=c++20", "-O0", "-g1", "-w", sanitizer.flag, "-I", str(HERE / "stand_in"))
    subprocess.run([*command, str(HERE / "torch_side_driver.cpp"), "-o", str(driver)], check=True)
    ran = subprocess.run(
        [*PREFIX, driver, str(DESTROYED)], env=os.environ | sanitizer.settings, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "over\n"), ran.stderr[:8000]
