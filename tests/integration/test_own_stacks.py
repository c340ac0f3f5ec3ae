"""Stacks that a rank tells of itself, where nobody may read them from outside."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.model.rank import StackDump
from ncclwatch_agent.stacks.own_stacks import ask_at, either, ring_of
from tests.integration.agent_node import NO_SERVER, Node
from tests.integration.test_diagnose import COMMAND, refusing_py_spy

pytestmark = pytest.mark.integration


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Give a node whose runtime directory is where NCCLWATCH_RUNTIME_DIR would put it."""
    made = Node(tmp_path / f"ncclwatch-{os.getuid()}")
    yield made
    for rank in made.ranks:
        rank.kill()
        rank.communicate()


def ring(node: Node) -> str:
    (found,) = node.directory.rglob("*.ring")
    return str(found)


def test_a_rank_tells_its_own_stacks_and_leaves_nothing_behind(node: Node) -> None:
    pid = node.rank(3, NO_SERVER).pid
    for _ in range(2):  # a second question gets an answer of its own
        found = asyncio.run(ask_at(ring(node), 3, pid, deadline_s=30.0))
        assert (found.rank, found.failure) == (3, "")
        (main,) = [frames for thread, frames in found.threads if thread == "MainThread"]
        assert main[0].function == "main" and main[0].file.endswith("agent_child.py") and main[0].line > 0
    assert [path.name for path in Path(ring(node)).parent.iterdir()] == [Path(ring(node)).name]


def test_a_rank_that_cannot_answer_is_told_and_the_question_is_taken_back(node: Node) -> None:
    rank = node.rank(3, NO_SERVER)
    os.kill(rank.pid, signal.SIGSTOP)
    os.waitpid(rank.pid, os.WUNTRACED)
    found = asyncio.run(ask_at(ring(node), 3, rank.pid, deadline_s=0.5))
    assert "rank 3 itself did not answer within 0.5 s" in found.failure
    assert [path.name for path in Path(ring(node)).parent.iterdir()] == [Path(ring(node)).name]


def test_a_question_that_cannot_be_asked_is_no_error(tmp_path: Path) -> None:
    assert "cannot be asked either" in asyncio.run(ask_at(str(tmp_path / "gone" / "3-1.ring"), 3, 1)).failure


def test_the_ring_of_a_process_is_found_by_its_environment(node: Node) -> None:
    pid = node.rank(3, NO_SERVER).pid
    environ = {"NCCLWATCH_RUNTIME_DIR": str(node.directory.parent)}
    assert ring_of(3, pid, environ) == ring(node)
    assert ring_of(3, pid // 10, environ) == ring_of(2, pid, environ) == ""


def test_of_two_failures_both_reasons_are_told() -> None:
    outside, own = StackDump(rank=0, failure="refused"), StackDump(rank=0, failure="silent")
    assert either(outside, own).failure == "refused. And silent"


def test_diagnose_asks_an_attached_rank_where_py_spy_is_refused(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLWATCH_RUNTIME_DIR", str(node.directory.parent))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    pid = node.rank(0, NO_SERVER).pid
    code = f"import sys; sys.executable = {refusing_py_spy(tmp_path)!r}; {COMMAND}"
    done = subprocess.run(
        [sys.executable, "-c", code, f"--pid={pid}"],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"PATH": str(tmp_path)},
    )  # fmt: skip
    assert "in main()" in done.stdout
    assert "could not be read" not in done.stdout
    assert done.returncode == 1, done.stderr
