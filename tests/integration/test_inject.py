"""`ncclwatch run --inject`: scripts that nobody edits, under torchrun and without, and what must not be touched."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclwatch.cli.running.injection import DIRECTORY, injected
from tests.integration.server_process import ROOT
from tests.ports import free_port

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).parent / "programs" / "unedited.py"


def run(tmp_path: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command under `ncclwatch run --inject`, with an agent of its own."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NCCLWATCH_", "TORCHELASTIC", "RANK"))}
    own = {"NCCLWATCH_RUNTIME_DIR": str(tmp_path / "runtime"), "OMP_NUM_THREADS": "1", "NCCLWATCH_JOB": "unedited"}
    report = str(tmp_path / "report.json")
    arguments = ("run", "--inject", "--on-hang", "abort", "--report", report, "--", *command)
    with subprocess.Popen(
        [sys.executable, "-m", "ncclwatch", *arguments], cwd=ROOT, env=inherited | own | more, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=110)
        except subprocess.TimeoutExpired:
            process.terminate()  # passed on to torchrun, which ends its ranks
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def torchrun(ranks: int, *script: str) -> tuple[str, ...]:
    rendezvous = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    launcher = (sys.executable, "-m", "torch.distributed.run")
    return (*launcher, f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", rendezvous, *script)


def said(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_hang_of_an_unedited_script_is_told_with_rank_and_line(tmp_path: Path) -> None:
    done = run(tmp_path, *torchrun(2, str(PROGRAM), "hang"))
    assert done.returncode == 70, done.stderr
    (incident,) = json.loads((tmp_path / "report.json").read_text())["incidents"]
    line = PROGRAM.read_text().splitlines().index("    dist.barrier()") + 1
    assert [(each["rank"], each["call_site"]["line"]) for each in incident["culprits"]] == [(1, line)]
    assert "barrier" in incident["summary"]
    assert "ncclwatch: CRITICAL" in done.stderr


def test_ranks_attach_once_edited_or_not_and_nobody_else_does(tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import os\nos.environ['MY_SITE'] = os.environ.get('MY_SITE', '') + 'x'\n")
    path = os.pathsep.join((str(other), os.environ.get("PYTHONPATH", "")))
    done = run(tmp_path, *torchrun(2, "-m", "tests.integration.programs.unedited", "attach"), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    told = said(done)
    # `ncclwatch run`, torchrun and the rank itself have each run the other sitecustomize once.
    assert [each["mine"] for each in told] == ["xxx", "xxx"]
    assert [each["helper"] for each in told] == ["", ""]
    assert [each["spawned"] for each in told] == [0.0, 0.0]
    pids = sorted(str(each["pid"]) for each in told)
    for each in told:  # one ring for each rank, and of nobody else
        assert sorted(name.partition("-")[2] for name in each["rings"]) == pids
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["world_size"], report["incidents"]) == (2, [])
    assert "ncclwatch" not in done.stderr


SINGLE = """
import os, sys
import torch.distributed as dist
before = dist.init_process_group.__module__
dist.init_process_group("gloo", rank=0, world_size=1, init_method="tcp://127.0.0.1:%d")
import ncclwatch
from ncclwatch.rank import attach
print(before, attach.current() is not None)
ncclwatch.detach()
print(dist.init_process_group.__module__, dist.init_process_group is dist.distributed_c10d.init_process_group)
"""


def single(tmp_path: Path, code: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = injected(os.environ) | {"NCCLWATCH_RUNTIME_DIR": str(tmp_path), "NCCLWATCH_AGENT": "0"} | more
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=110)


def test_what_is_laid_round_init_is_gone_after_the_first_call(tmp_path: Path) -> None:
    done = single(tmp_path, SINGLE % free_port())
    assert done.stdout.split() == ["sitecustomize", "True", "torch.distributed.distributed_c10d", "True"], done.stderr


def test_a_rank_without_ncclwatch_is_told_so_and_trains(tmp_path: Path) -> None:
    (tmp_path / "ncclwatch.py").write_text("raise ImportError('not here')")
    code = (SINGLE % free_port()).partition("import ncclwatch")[0] + "print('trained')"
    path = f"{DIRECTORY}{os.pathsep}{tmp_path}"
    done = single(tmp_path, code, PYTHONPATH=path)
    assert done.stdout.strip() == "trained"
    assert done.stderr.startswith(
        "ncclwatch: cannot attach to this rank: ImportError: 'not here'. Is ncclwatch installed"
    )


def test_a_process_without_torch_imports_nothing_of_ncclwatch(tmp_path: Path) -> None:
    done = single(tmp_path, "import sys; print(*(name for name in sys.modules if 'ncclwatch' in name))")
    assert (done.stdout, done.stderr) == ("\n", "")


def test_a_broken_sitecustomize_of_the_user_is_told_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('mine is broken')")
    done = single(tmp_path, "print('runs')", PYTHONPATH=f"{DIRECTORY}{os.pathsep}{tmp_path}")
    assert done.stdout == "runs\n"
    assert "mine is broken" in done.stderr


def test_a_command_without_ranks_is_told_that_nothing_was_injected(tmp_path: Path) -> None:
    done = run(tmp_path, sys.executable, "-I", "-c", "print('done')")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "--inject found no rank" in done.stderr
