"""A job of each framework hangs, and the verdict is right without any callback: attach() alone is enough."""

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.server_process import ROOT
from tests.ports import free_port

pytestmark = pytest.mark.timeout(300)
PROGRAMS = Path(__file__).parent / "programs"

# The Trainers on top of Fabric and of Accelerate are tried in every run; the rest takes minutes: make frameworks
ALWAYS = ("lightning_hangs.py", "transformers_hangs.py")
# framework, its program, the odd rank, the call that it makes alone
CASES = (
    ("lightning", "lightning_hangs.py", 0, "trainer.save_checkpoint("),
    ("lightning", "fabric_hangs.py", 0, "fabric.save("),
    ("transformers", "transformers_hangs.py", 0, "self.trainer.evaluate()"),
    ("accelerate", "accelerate_hangs.py", 0, "accelerator.gather("),
    ("deepspeed", "deepspeed_hangs.py", 0, "engine.save_checkpoint("),
)


def torchrun(*script: str) -> tuple[str, ...]:
    rendezvous = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    launcher = (sys.executable, "-m", "torch.distributed.run")
    return (*launcher, "--nproc-per-node=2", "--rdzv-backend=c10d", rendezvous, *script)


def run(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="fw-", ignore_cleanup_errors=True) as short:
        return _run(tmp_path, short, *command)


def _run(tmp_path: Path, short: str, *command: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NCCLWATCH_", "TORCHELASTIC", "RANK"))}
    own = {
        "NCCLWATCH_RUNTIME_DIR": str(tmp_path / "runtime"), "OMP_NUM_THREADS": "1", "TMPDIR": short,
        "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu",
    }  # fmt: skip
    arguments = ("run", "--on-hang", "abort", "--report", str(tmp_path / "report.json"), "--", *command)
    with subprocess.Popen(
        [sys.executable, "-m", "ncclwatch", *arguments], cwd=ROOT, env=inherited | own, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.terminate()  # passed on to torchrun, which ends its ranks
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize(("framework", "program", "rank", "call"), CASES, ids=[case[1][:-9] for case in CASES])
def test_a_hang_is_told_without_a_callback(tmp_path: Path, framework: str, program: str, rank: int, call: str) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: make frameworks")
    if program not in ALWAYS and os.environ.get("FRAMEWORKS") != "all":
        pytest.skip("make frameworks")
    script = PROGRAMS / program
    (tmp_path / "out").mkdir()
    arguments = (str(script), str(tmp_path / "out"))
    done = run(tmp_path, *torchrun(*arguments))
    assert done.returncode == 70, done.stderr
    incident = json.loads((tmp_path / "report.json").read_text())["incidents"][0]
    (line,) = (n for n, text in enumerate(script.read_text().splitlines(), start=1) if call in text)
    said = [
        (each["rank"], Path(each["call_site"]["file"]).name, each["call_site"]["line"]) for each in incident["culprits"]
    ]
    assert said == [(rank, program, line)], incident["summary"]
    assert incident["cause"] == "rank_conditional_collective", incident["explanation"]
    assert incident["certainty"] == "PROVEN"
    assert incident["victims"] == [1 - rank]
