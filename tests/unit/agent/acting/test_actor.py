"""What an agent does about hangs: only what the owner of the job has asked for, to processes that are really there."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclwatch.contract.errors import WireError
from ncclwatch.contract.machine.private_dirs import PrivateDir, open_private
from ncclwatch.contract.model.rank import ProcessState
from ncclwatch.contract.on_hang.decision import Hang
from ncclwatch.contract.on_hang.hangs import Hangs, OpenHang, decode, encode
from ncclwatch.contract.on_hang.notice import Notice, parse
from ncclwatch_agent.acting import actor
from ncclwatch_agent.acting.actor import RESTART_S, Actor
from ncclwatch_agent.acting.ending import STUCK_S, TERMINATE_S
from ncclwatch_agent.acting.launcher import Launcher

FROZEN = Hang(cause="process_frozen", certainty="PROVEN", ranks=frozenset({1}), places=frozenset({"a.py:3"}))
CODE = Hang(cause="rank_conditional_collective", certainty="PROVEN", ranks=frozenset({1}))
LATE = Hang(cause="straggler", certainty="LATE", ranks=frozenset({1}))
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
PLAIN = "import time; print('ready', flush=True); time.sleep(600)"


def process(program: str = PLAIN) -> "subprocess.Popen[str]":
    made = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    made.stdout.readline()
    return made


class Node:
    """An agent with one job of one rank, whose launcher is a process as well."""

    def __init__(self, place: PrivateDir) -> None:
        self.place = place
        self.now = 1000.0
        self.told: list[str] = []
        self.actor = Actor(lambda _, sentence: self.told.append(sentence), clock=lambda: self.now)
        self.launcher = process()
        self.rank = process()

    def job(self, on_hang: str, *, index: int = 1, left: int | None = None, policy: str = "", port: int = 1) -> Any:
        rank = SimpleNamespace(
            rank=0, identity={"on_hang": on_hang, "hang_policy": policy},
            header=SimpleNamespace(pid=self.rank.pid), is_here=self.rank.poll() is None, gone=False,
            wants_notices=on_hang == "raise", place=self.place, ring=SimpleNamespace(file_name="0-17.ring"),
            watch=SimpleNamespace(
                parent=self.launcher.pid, pidfd=SimpleNamespace(fd=-1), state=ProcessState.SLEEPING,
            ),
        )  # fmt: skip
        return SimpleNamespace(
            ranks={0: rank},
            key=SimpleNamespace(job="llama", instance=f"a:{port}/x", attempt=index - 1),
            index=index, on_hang=on_hang, hang_policy=policy,
            acts=on_hang not in ("", "report"), under_torchrun=left is not None, restarts_left=left or 0,
            everyone=lambda: [rank],
        )  # fmt: skip

    def hear(self, job: Any, *hangs: Hang, before: tuple[Hang, ...] = (), stands_s: float = 5.0) -> None:
        found = tuple(OpenHang(incident=f"i{n}", hang=hang, stands_s=stands_s) for n, hang in enumerate(hangs))
        self.actor.hear(job, encode(Hangs(open=found, before=before, attempts=len(before))))

    def tend(self, job: Any) -> None:
        """Let it decide, and do what it has decided."""
        self.actor.tend(job, connected=True)
        self.actor.tend(job, connected=True)

    def end_as(self, *expected: int | None) -> None:
        """Wait until the rank and its launcher have ended with these codes; None: it runs on, as far as is seen."""
        for each, code in zip((self.rank, self.launcher), expected, strict=True):
            if code is not None:
                assert each.wait(60) == code
        time.sleep(0.2 if None in expected else 0.0)
        assert (self.rank.poll(), self.launcher.poll()) == expected

    def begin_again(self, program: str = PLAIN) -> None:
        """Let the rank be another process."""
        self.rank.kill()
        self.rank.communicate()
        self.rank = process(program)

    def close(self) -> None:
        for each in (self.rank, self.launcher):
            each.kill()
            each.communicate()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Node]:
    with open_private(str(tmp_path / "rings"), make=True) as place:
        made = Node(place)
        monkeypatch.setattr(actor, "launcher_of", lambda pids: Launcher(made.launcher.pid) if tuple(pids) else None)
        yield made
        made.close()


@pytest.mark.parametrize("on_hang", ["", "report"])
def test_a_server_ends_nothing_of_a_job_that_did_not_ask(node: Node, on_hang: str) -> None:
    job = node.job(on_hang, left=3)
    node.hear(job, FROZEN, CODE)
    node.tend(job)
    node.end_as(None, None)
    assert node.told == []


def test_what_is_done_is_said_before_it_is_done(node: Node) -> None:
    """In a container the agent ends with the launcher, if that is the first process: it could say nothing then."""
    job = node.job("abort")
    node.hear(job, CODE)
    node.actor.tend(job, connected=True)
    assert [each.partition(":")[0] for each in node.told] == ["ending the ranks (abort)"]
    node.end_as(None, None)
    node.actor.tend(job, connected=True)
    node.end_as(-signal.SIGTERM, None)


@pytest.mark.parametrize("on_hang", ["policy", "abort", "restart"])
def test_nothing_is_done_about_ranks_that_are_late_nor_without_a_connection(node: Node, on_hang: str) -> None:
    job = node.job(on_hang, left=3)
    node.hear(job, LATE)
    node.tend(job)
    node.hear(job, FROZEN)
    node.actor.tend(job, connected=False)
    node.tend(job)  # what stood then is not known to stand now
    node.end_as(None, None)
    assert node.told == []


@pytest.mark.parametrize("other", [{}, {"on_hang": "report"}, {"on_hang": "abort", "hang_policy": "/own.toml"}])
def test_where_ranks_ask_for_different_things_nothing_is_ended_and_that_is_said_once(
    node: Node, other: dict[str, str]
) -> None:
    """Whichever ring was found first would decide else."""
    job = node.job("abort", left=3)
    job.ranks[1] = SimpleNamespace(**{**vars(job.ranks[0]), "rank": 1, "identity": {"job": "llama", **other}})
    for _ in range(2):
        node.hear(job, FROZEN)
        node.tend(job)
    node.end_as(None, None)
    (said,) = node.told
    assert said.startswith("nothing is ended for hangs: rank 0 asks for abort")
    assert "set NCCLWATCH_ON_HANG to one value on all ranks" in said


def test_a_hang_that_was_resolved_is_not_acted_on(node: Node) -> None:
    job = node.job("restart", left=3)
    node.hear(job, FROZEN)
    node.hear(job)
    node.tend(job)
    node.end_as(None, None)


def test_for_a_restart_the_ranks_end_and_torchrun_does_not(node: Node) -> None:
    job = node.job("restart", left=2)
    node.hear(job, FROZEN)
    node.tend(job)
    node.end_as(-signal.SIGTERM, None)
    assert node.told == [
        "ending the ranks, so that torchrun starts them again, up to 2 times more (restart): the policy says so for "
        "process_frozen (incident i0)"
    ]
    assert node.actor.awaits_restart
    node.launcher.kill()
    node.launcher.wait()
    assert not node.actor.awaits_restart


@pytest.mark.parametrize(("left", "words"), [(3, "ending the job"), (0, "ending the job")])
def test_for_an_abort_torchrun_ends_so_that_it_starts_nothing_again(node: Node, left: int, words: str) -> None:
    job = node.job("policy", left=left)
    node.hear(job, CODE)
    node.tend(job)
    node.end_as(-signal.SIGTERM, -signal.SIGTERM)
    assert node.told[0].startswith(f"{words} (abort): the policy says so for rank_conditional_collective")
    assert not node.actor.awaits_restart


def test_without_restarts_left_the_job_ends_and_that_is_said(node: Node) -> None:
    job = node.job("restart", left=0)
    node.hear(job, FROZEN)
    node.tend(job)
    node.end_as(-signal.SIGTERM, -signal.SIGTERM)
    assert node.told[0].startswith("ending the job, which torchrun starts again no more (--max-restarts) (restart)")


def test_another_launcher_than_torchrun_is_left_alone(node: Node) -> None:
    job = node.job("abort")
    node.hear(job, FROZEN)
    node.tend(job)
    node.end_as(-signal.SIGTERM, None)
    assert node.told[0].startswith("ending the ranks (abort)")


def test_who_does_not_hear_sigterm_is_killed_and_who_lives_on_is_named(node: Node) -> None:
    node.begin_again(DEAF)
    job = node.job("restart", left=1)
    node.hear(job, FROZEN)
    node.tend(job)
    node.now += TERMINATE_S - 0.1
    node.tend(job)
    node.end_as(None, None)
    node.now += 0.2
    node.actor.tend(job, connected=False)  # what was begun goes on without a server
    node.end_as(-signal.SIGKILL, None)
    node.now += STUCK_S
    job.everyone()[0].watch.state = ProcessState.DISK_WAIT
    node.tend(job)
    node.tend(job)
    assert [line for line in node.told if "does not end" in line] == [
        f"rank 0 (pid {node.rank.pid}) does not end: the kernel holds it (state D); its node needs a look"
    ]


def test_a_stopped_rank_is_killed_at_once(node: Node) -> None:
    os.kill(node.rank.pid, signal.SIGSTOP)
    job = node.job("restart", left=1)
    job.everyone()[0].watch.state = ProcessState.STOPPED
    node.hear(job, FROZEN)
    node.tend(job)
    node.end_as(-signal.SIGKILL, None)


def test_the_same_hang_after_a_restart_ends_the_job_whether_the_server_remembers_it_or_not(node: Node) -> None:
    first = node.job("restart", left=3)
    node.hear(first, FROZEN)
    node.tend(first)
    node.actor.forget(first)
    assert node.actor.awaits_restart
    node.begin_again()
    second = node.job("restart", index=2, left=2)
    node.tend(second)
    assert not node.actor.awaits_restart  # it has come
    node.hear(second, FROZEN)
    node.tend(second)
    node.end_as(-signal.SIGTERM, -signal.SIGTERM)
    assert "(abort): it hangs as it did before a restart" in node.told[-1]


def test_an_attempt_that_ends_by_itself_does_not_make_the_hang_before_it_forgotten(node: Node) -> None:
    for index in (1, 2, 3):
        job = node.job("restart", index=index, left=4 - index)
        node.hear(job, *([] if index == 2 else [FROZEN]))
        node.tend(job)
        node.actor.forget(job)
        node.begin_again()
    assert "(abort): it hangs as it did before a restart" in node.told[-1]


def test_a_job_that_somebody_starts_by_hand_once_more_has_not_been_restarted(node: Node) -> None:
    """At the same address, under the same name, on a node where another job keeps the agent."""
    first = node.job("restart", left=3)
    node.hear(first, FROZEN)
    node.tend(first)
    node.end_as(-signal.SIGTERM, None)
    node.actor.forget(first)
    node.launcher.kill()
    node.launcher.communicate()
    node.launcher = process()
    node.begin_again()
    second = node.job("restart", index=2, left=3)
    node.hear(second, FROZEN)
    node.tend(second)
    assert "(restart): the policy says so" in node.told[-1]
    node.end_as(-signal.SIGTERM, None)


@pytest.mark.parametrize("same_torchrun", [True, False])
def test_an_attempt_whose_ranks_meet_at_another_port_is_known_by_its_torchrun(node: Node, same_torchrun: bool) -> None:
    first = node.job("restart", left=3, port=1)
    node.hear(first, FROZEN)
    node.tend(first)
    node.end_as(-signal.SIGTERM, None)
    node.actor.forget(first)
    node.begin_again()
    if not same_torchrun:
        node.launcher.kill()
        node.launcher.communicate()
        node.launcher = process()
    second = node.job("restart", index=2, left=2, port=2)
    node.hear(second, FROZEN)
    node.tend(second)
    assert "(abort): it hangs as it did before" in node.told[-1] if same_torchrun else "(restart)" in node.told[-1]
    assert not same_torchrun or not node.actor.awaits_restart


def test_what_a_server_remembers_counts_as_well(node: Node) -> None:
    job = node.job("restart", left=3)
    node.hear(job, FROZEN, before=(FROZEN,))
    node.tend(job)
    assert "(abort): it hangs as it did before a restart" in node.told[-1]


@pytest.mark.parametrize("hangs", [(FROZEN, CODE), (CODE, FROZEN)])
def test_of_several_hangs_the_one_that_a_restart_does_not_cure_decides(node: Node, hangs: tuple[Hang, ...]) -> None:
    job = node.job("policy", left=3)
    node.hear(job, *hangs)
    node.tend(job)
    assert "(abort): the policy says so for rank_conditional_collective" in node.told[-1]
    node.end_as(-signal.SIGTERM, -signal.SIGTERM)


def test_a_restart_is_not_waited_for_for_ever(node: Node) -> None:
    job = node.job("restart", left=3)
    node.hear(job, FROZEN)
    node.tend(job)
    node.now += RESTART_S + 1.0
    assert not node.actor.awaits_restart


def test_a_hang_that_is_not_proven_waits_for_its_time(node: Node) -> None:
    job = node.job("policy", left=3)
    node.hear(job, Hang(cause="host_stall", certainty="STALLED", ranks=frozenset({1})), stands_s=100.0)
    node.tend(job)
    assert node.told == []
    node.now += 21.0
    node.tend(job)
    node.end_as(-signal.SIGTERM, None)


def test_a_policy_that_cannot_be_read_is_told_once_and_nothing_is_done(node: Node) -> None:
    job = node.job("policy", left=3, policy="/nowhere/hangs.toml")
    for _ in range(3):
        node.hear(job, FROZEN)
        node.tend(job)
    (said,) = node.told
    assert said.startswith(
        "nothing is done about hangs: cannot read the policy for hangs in /nowhere/hangs.toml (No such"
    )
    node.end_as(None, None)


def test_torchrun_is_ended_though_the_ranks_of_this_node_are_gone_already(node: Node) -> None:
    job = node.job("abort", left=3)
    node.tend(job)
    node.rank.kill()
    node.rank.wait()
    gone = node.job("abort", left=3)  # for the loss of a rank that another node's agent has ended
    node.hear(gone, FROZEN)
    node.tend(gone)
    node.end_as(-signal.SIGKILL, -signal.SIGTERM)


def test_where_no_torchrun_is_found_that_is_said(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "launcher_of", lambda _: None)
    job = node.job("abort", left=3)
    node.hear(job, FROZEN)
    node.tend(job)
    node.end_as(-signal.SIGTERM, None)
    assert node.told[0].startswith(
        "ending the ranks; what started them was not found, and may start them again (abort)"
    )


def heard(node: Node) -> Notice | None:
    return parse(node.place.read("0-17.ring.notice", 1 << 20))


def test_ranks_that_are_to_raise_are_told_of_the_hang_again_and_again_until_it_is_over(node: Node) -> None:
    job = node.job("raise", left=3)
    node.hear(job, FROZEN)
    beats = []
    for _ in range(2):
        node.actor.tend(job, connected=True)
        found = heard(node)
        assert found is not None and found.to_raise is not None
        assert (found.to_raise.cause, found.to_raise.culprits, found.to_raise.job) == ("process_frozen", (1,), "llama")
        beats.append(found.beat)
    assert beats == [1, 2]
    assert node.told == ["raising HangError in ranks that run Python (raise; incident i0)"]
    node.hear(job)
    node.tend(job)
    assert heard(node) is None
    node.end_as(None, None)


def test_nothing_is_raised_for_ranks_that_are_late(node: Node) -> None:
    job = node.job("raise")
    node.hear(job, LATE)
    node.tend(job)
    found = heard(node)
    assert found is not None and (found.to_raise, node.told) == (None, [])


@pytest.mark.parametrize("connected", [True, False])
def test_what_ranks_were_told_is_taken_back_with_the_connection_or_the_job(node: Node, connected: bool) -> None:
    job = node.job("raise")
    node.hear(job, FROZEN)
    node.tend(job)
    assert heard(node) is not None
    if connected:
        node.actor.forget(job)
    else:
        node.actor.tend(job, connected=False)
    assert heard(node) is None


@pytest.mark.parametrize("on_hang", ["", "report", "capture", "policy"])
def test_ranks_that_did_not_ask_are_told_nothing(node: Node, on_hang: str) -> None:
    job = node.job(on_hang)
    node.hear(job, Hang(cause="undetermined", certainty="PROVEN"))
    node.tend(job)
    assert heard(node) is None


@pytest.mark.parametrize("text", ["", "{", '{"open":[{"incident":1}]}', '{"open":7}'])
def test_a_text_that_tells_of_no_hangs_is_an_error(text: str) -> None:
    with pytest.raises(WireError, match="in a form that is unknown"):
        decode(text)
