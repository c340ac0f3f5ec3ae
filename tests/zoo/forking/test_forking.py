"""A forked rank sees and leaves behind what a started one does, but for what the launcher's docstring names."""

import json
import os
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launch import started
from tests.zoo.jobs import Launcher, torchrun

from .torch_once import forked, forking_torchrun

PROGRAM = '''
import atexit, json, os, pathlib, random, signal, sys, threading
import numpy, torch

class Mine: ...

def shown():
    """Say in one piece what is the same for every launcher."""
    words = sorted(name for name in os.environ if name.startswith(("TORCH", "MASTER", "OMP", "GROUP", "ROLE")))
    print(json.dumps({
        "rank": [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")], "words": words,
        "argv": sys.argv[1], "input": sys.stdin.read(),
        "program": sys.argv[0] == __file__ == str(FOLDER / "program.py"),
        "name": __name__, "class": Mine.__module__, "main": vars(sys.modules["__main__"]) is globals(),
        "beside": sys.path[0] == str(FOLDER), "leads": os.getsid(0) == os.getpid(), "cwd": os.getcwd(),
        "threads": threading.active_count(), "signals": [signal.getsignal(n) is d for n, d in DISPOSITIONS],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "drawn": [random.random(), numpy.random.rand(), torch.rand(1).item()],
    }) + "\\n", end="", flush=True)

DISPOSITIONS = (
    (signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)
)
FOLDER = pathlib.Path(sys.argv[2])
shown()
(FOLDER / "said").open("w" if os.environ["RANK"] == "0" else "r").close()  # each waits here for the other
if os.environ["RANK"] == "1":
    atexit.register(lambda: (FOLDER / "left").touch())
    raise ValueError("of the program")
'''


def ended(launcher: Launcher, folder: Path) -> tuple[list[dict[str, Any]], "subprocess.CompletedProcess[str]"]:
    """Run the program as two ranks; return what each said of its start, in their order, and how the job ended."""
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(PROGRAM)
    os.mkfifo(folder / "said")
    ignoring = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh"]  # as in the background of a script
    command = [*ignoring, *launcher(program, 2, ("--folder", str(folder)))]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=140, check=False)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted(said, key=lambda one: str(one["rank"])), done


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_forked_rank_is_a_rank_to_itself_and_to_its_launcher(tmp_path: Path) -> None:
    started, one = ended(torchrun, tmp_path / "started")
    forked, other = ended(forking_torchrun, tmp_path / "forked")
    drawn = [set(rank.pop("drawn")) for rank in forked + started]
    assert len(forked) == len(started) == 2
    assert forked[0] == started[0]
    assert forked[1] == started[1]
    assert len(set.union(*drawn)) == 12
    assert (one.returncode, other.returncode) == (1, 1)
    assert "ValueError: of the program" in one.stderr
    assert "ValueError: of the program" in other.stderr
    assert (tmp_path / "forked" / "left").exists()


LONE = """
import json, os, signal, sys, threading
print(json.dumps({
    "argv": sys.argv[1:], "name": __name__, "main": vars(sys.modules["__main__"]) is globals(), "cwd": os.getcwd(),
    "words": sorted(name for name in os.environ if name.startswith(("TORCH", "RANK", "OMP", "MINE"))),
    "path": sys.path[:2], "threads": threading.active_count(), "descriptors": len(os.listdir("/proc/self/fd")),
    "asked": sys.stdin.readline(), "interrupted": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "pid": os.getpid(), "shown": open("/proc/self/cmdline").read().rstrip("\\\\0").split("\\\\0")[1:],
}), flush=True)
sys.stdin.readline()
raise ValueError("of the program")
"""


def lone(begin: Callable[..., tuple[str, ...]], folder: Path) -> "subprocess.Popen[str]":
    program = folder / "program.py"
    program.write_text(LONE)
    environ = os.environ | {"RANK": "7", "MINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder / "beside")}
    piped = subprocess.PIPE
    return subprocess.Popen(
        begin(program, "--of", "mine"), cwd=folder, env=environ, stdin=piped, stdout=piped, stderr=piped, text=True
    )


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_lone_forked_rank_sees_and_leaves_behind_what_a_started_one_does(tmp_path: Path) -> None:
    found = []
    for begin in (started, forked):
        with lone(begin, tmp_path) as rank:
            out, err = rank.communicate("asked\n")
        found.append(json.loads(out))
        assert (rank.returncode, err.splitlines()[-1]) == (1, "ValueError: of the program")
    ours, theirs = ({**said, "pid": 0} for said in found)
    assert theirs == ours


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_lone_forked_rank_is_gone_when_who_asked_for_it_is_killed(tmp_path: Path) -> None:
    with lone(forked, tmp_path) as rank:
        assert rank.stdin is not None and rank.stdout is not None
        rank.stdin.write("asked\n")
        rank.stdin.flush()
        pid = json.loads(rank.stdout.readline())["pid"]
        end = os.pidfd_open(pid)
        rank.kill()
        assert select.select([end], [], [], 60)[0] == [end]
        os.close(end)
