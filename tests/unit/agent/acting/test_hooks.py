"""Which agent runs a hook, how often, as whom, and what waits for it."""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclwatch.contract.model.verdict import Culprit
from ncclwatch.contract.on_hang.decision import Decision, Hang
from ncclwatch.contract.on_hang.hangs import Hangs, HookFacts, Hooks, OpenHang, encode
from ncclwatch.contract.on_hang.hook import PER_ATTEMPT_MAX
from ncclwatch.contract.on_hang.hook_process import ENDED_S_MAX
from ncclwatch.contract.on_hang.policy import Action, in_force
from ncclwatch_agent.acting import hooks
from ncclwatch_agent.acting.actor import Actor
from ncclwatch_agent.acting.hooks import GRANT_S, NEWS_S, HookDesk, JobHooks
from ncclwatch_server.jobs.hook_grants import HookGrants

FROZEN = Hang(cause="process_frozen", certainty="PROVEN", ranks=frozenset({1}))
LATE = Hang(cause="straggler", certainty="LATE", ranks=frozenset({1}))
TIMEOUT_S = 20.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Node:
    """The agent of one node of a job without ranks, whose policy names a hook."""

    def __init__(self, name: str, tmp_path: Path, text: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.told: list[str] = []
        self.ran = tmp_path / f"{name}.ran"  # a line for each run
        self.hook = tmp_path / f"{name}-hook"
        self.hook.write_text(f"#!/bin/sh\ncat >> {self.ran}\n{text}\n")
        self.hook.chmod(0o755)
        policy = tmp_path / f"{name}.toml"
        policy.write_text(
            f"hook = '{self.hook}'\nhook_timeout_s = {TIMEOUT_S}\n"
            "[proven]\nprocess_frozen = 'abort'\nother = 'report'\n"
        )
        self.actor = Actor(lambda _, sentence: self.told.append(sentence), clock=clock)
        self.job: Any = SimpleNamespace(
            ranks={}, index=1, key=SimpleNamespace(job="llama", instance="a:1/x", attempt=2, world_size=4),
            on_hang="policy", hang_policy=str(policy), under_torchrun=False, restarts_left=0, everyone=list,
            hooks={}, announce_again=False, spans_nodes=lambda: True,
        )  # fmt: skip

    @property
    def runs(self) -> list[Any]:
        return [json.loads(line) for line in self.ran.read_text().splitlines()] if self.ran.exists() else []

    @property
    def ends(self) -> bool:
        return any(line.startswith("ending the ") for line in self.told)

    def tend(self) -> None:
        self.actor.tend(self.job, connected=True)


class Site:
    """Two nodes and their server, which all news reaches at once."""

    def __init__(self, tmp_path: Path, text: str = "exit 0") -> None:
        self.now = 1000.0
        self.grants = HookGrants()
        self.nodes = [Node(name, tmp_path, text, lambda: self.now) for name in ("node0", "node1")]

    def hear(self, *nodes: Node, hangs: tuple[Hang, ...] = (FROZEN,), knows: bool = True) -> None:
        ids = [f"i{number}" for number in range(len(hangs))]
        open_hangs = tuple(
            OpenHang(incident=each, hang=hang, stands_s=5.0, sentence="rank 1 is stopped", advice="restart it")
            for each, hang in zip(ids, hangs, strict=True)
        )
        for node in nodes or self.nodes:
            self.grants.note(node.name, node.job.hooks)
        for node in nodes or self.nodes:
            facts = tuple(
                HookFacts(
                    incident=each, culprits=(Culprit(rank=1, host="node1", device="cuda:1"),), capture="node0:/c.zip",
                    opened_at="2026-11-20T10:00:00Z",
                ) for each in self.grants.granted(node.name, ids)
            )  # fmt: skip
            known = Hooks(granted=facts, taken=self.grants.taken(node.name, ids), over=self.grants.over(ids))
            node.actor.hear(node.job, encode(Hangs(open=open_hangs, hooks=known if knows else None)))

    def go_round(self, **more: Any) -> None:
        for node in self.nodes:
            node.tend()
        self.hear(**more)

    def close(self) -> None:
        for node in self.nodes:
            node.actor.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    found.close()


@pytest.fixture
def held_site(tmp_path: Path) -> Iterator[Site]:
    """Two nodes whose hooks end once there is a file `may-end`."""
    found = Site(tmp_path, f"until [ -e {tmp_path}/may-end ]; do sleep 0.02; done")
    yield found
    found.close()


def test_of_two_agents_one_runs_it_and_both_act_when_it_has_ended(held_site: Site, tmp_path: Path) -> None:
    site = held_site
    first, second = site.nodes
    site.hear()
    site.go_round()
    site.go_round()
    assert not (first.ends or second.ends)
    (tmp_path / "may-end").touch()
    until(lambda: not first.actor.runs_hook)
    assert not (first.ends or second.ends)
    for _ in range(3):
        site.go_round()
    assert first.ends and second.ends
    (call,) = [*first.runs, *second.runs]
    assert (call["action"], call["job"], call["attempt"]) == ("abort", "llama", 2)
    assert call["reason"] == "the policy says so for process_frozen"
    assert (call["capture"], call["culprits_total"]) == ("node0:/c.zip", 1)
    incident = call["incident"]
    assert (incident["id"], incident["cause"], incident["world_size"]) == ("i0", "process_frozen", 4)
    assert (incident["summary"], incident["advice"]) == ("rank 1 is stopped", "restart it")
    assert [(each["rank"], each["host"], each["device"]) for each in incident["culprits"]] == [(1, "node1", "cuda:1")]
    assert first.told[0] == f"running hook {first.hook} (abort; incident i0)"
    assert first.told[1].startswith(f"hook {first.hook} finished with 0 in ")
    assert len(second.told) == 1  # that it ends the ranks


def test_it_is_granted_once_however_often_agents_ask_and_whoever_is_gone(site: Site) -> None:
    first, second = site.nodes
    site.hear()
    second.tend()
    first.tend()
    site.hear(second)  # it was heard of first
    site.hear()
    until(lambda: second.runs != [])
    for _ in range(3):
        first.tend()
        site.hear(first)  # the other one is lost
    assert (first.runs, len(second.runs)) == ([], 1)
    assert not first.ends
    site.now += TIMEOUT_S + ENDED_S_MAX + NEWS_S
    first.tend()
    assert first.ends  # it has waited as long as that one may take


def test_a_server_that_was_started_again_grants_it_to_nobody_else(tmp_path: Path) -> None:
    site = Site(tmp_path, "sleep 600")
    first, second = site.nodes
    site.hear()
    site.go_round()  # both have asked
    until(lambda: first.runs != [])
    site.go_round()
    site.grants = HookGrants()
    site.hear(second)  # it is the first to come back
    site.hear()
    site.go_round()
    site.go_round()
    assert (len(first.runs), second.actor.runs_hook) == (1, False)
    site.close()


def test_one_that_hangs_is_killed_and_the_job_is_ended_all_the_same(tmp_path: Path) -> None:
    site = Site(tmp_path, "sleep 600")
    node = site.nodes[0]
    policy = Path(node.job.hang_policy)
    policy.write_text(policy.read_text().replace(f"hook_timeout_s = {TIMEOUT_S}", "hook_timeout_s = 0.3"))
    site.hear(node)
    node.tend()
    site.hear(node)
    until(lambda: not node.actor.runs_hook)
    node.tend()
    assert node.told[1] == f"hook {node.hook} did not end within 0.3 s (hook_timeout_s), and was killed (incident i0)"
    assert node.ends


@pytest.mark.parametrize("text", ["exit 7", "kill -9 $$"])
def test_one_that_fails_does_not_stop_the_end(tmp_path: Path, text: str) -> None:
    site = Site(tmp_path, text)
    node = site.nodes[0]
    site.hear(node)
    node.tend()
    site.hear(node)
    until(lambda: not node.actor.runs_hook)
    node.tend()
    assert any(word in node.told[1] for word in ("finished with 7", "was ended by signal 9"))
    assert node.ends


def test_it_is_run_for_what_the_policy_only_reports_and_never_for_ranks_that_are_late(site: Site) -> None:
    node = site.nodes[0]
    hangs = (LATE, replace(FROZEN, cause="transport"))
    site.hear(node, hangs=hangs)
    for _ in range(3):
        node.tend()
        site.hear(node, hangs=hangs)
    until(lambda: not node.actor.runs_hook)
    node.tend()
    assert [(each["action"], each["incident"]["id"]) for each in node.runs] == [("report", "i1")]
    assert not node.ends


def test_a_hang_that_may_still_end_by_itself_is_not_decided(site: Site) -> None:
    node = site.nodes[0]
    Path(node.job.hang_policy).write_text(f"hook = '{node.hook}'\n[stalled]\nother = 'abort'\n")
    stalled = replace(FROZEN, certainty="STALLED")
    for _ in range(3):
        site.hear(node, hangs=(stalled,))
        node.tend()
    assert node.job.hooks == {}
    site.now += 120.0
    node.tend()
    assert node.job.hooks == {"i0": False}


def test_a_server_that_knows_of_no_hooks_holds_up_nothing(site: Site) -> None:
    node = site.nodes[0]
    site.hear(node, knows=False)
    node.tend()
    assert node.told[0].endswith("is not run: the server is of a version that knows of none")
    assert (node.ends, node.runs) == (True, [])


def test_without_an_answer_of_the_server_it_is_not_run_and_not_waited_for_long(site: Site) -> None:
    node = site.nodes[0]
    site.hear(node)
    node.tend()
    site.now += GRANT_S - 0.1
    node.tend()
    assert not node.ends
    site.now += 0.2
    node.tend()
    assert node.ends
    site.hear(node)  # the grant comes too late
    node.tend()
    assert node.runs == []
    assert node.job.hooks == {"i0": True}  # others need not wait for it


def test_a_node_on_which_it_cannot_be_run_says_so_at_once_and_leaves_it_to_others(site: Site) -> None:
    first, second = site.nodes
    first.hook.unlink()
    first.tend()
    assert first.told == [
        f"the hook {first.hook} cannot be run on this node, and hangs are acted on without it: {first.hook}: "
        "No such file or directory"
    ]
    site.hear()
    for _ in range(3):
        site.go_round()
    until(lambda: not second.actor.runs_hook)
    for _ in range(2):
        site.go_round()
    assert (first.ends, second.ends, len(second.runs)) == (True, True, 1)


def test_an_agent_runs_nothing_for_a_job_of_another_user(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's agent becomes the owner of its directory, and believes no ring of anybody else. This is the last check."""
    node = site.nodes[0]
    monkeypatch.setattr(hooks, "user_of", lambda pid: os.geteuid() + 1)
    rank = SimpleNamespace(rank=3, is_here=True, header=SimpleNamespace(pid=17))
    node.job.everyone = lambda: [rank]
    policy = in_force("policy", Path(node.job.hang_policy), {})
    assert policy is not None
    mine = JobHooks(node.job, policy, HookDesk(lambda _, sentence: node.told.append(sentence)))
    hang = OpenHang(incident="i0", hang=FROZEN, stands_s=5.0)
    assert not mine.is_over(hang, Decision(Action.ABORT, "so"), Hooks(granted=(HookFacts(incident="i0"),)))
    assert node.runs == []
    uids = f"belongs to uid {os.geteuid() + 1}, and this agent runs as uid {os.geteuid()}"
    assert node.told == [f"the hook {node.hook} is not run on this node: rank 3 {uids}"]
    assert node.job.hooks == {}


def test_there_are_so_many_for_one_attempt(site: Site) -> None:
    node = site.nodes[0]
    hangs = tuple(replace(FROZEN, cause="transport", ranks=frozenset({n})) for n in range(PER_ATTEMPT_MAX + 2))
    site.hear(node, hangs=hangs)
    for _ in range(3):
        node.tend()
        site.hear(node, hangs=hangs)
    until(lambda: not node.actor.runs_hook)
    assert len(node.runs) == PER_ATTEMPT_MAX
    assert sum("10 times for this attempt of the job" in line for line in node.told) == 2


def test_what_runs_is_ended_with_the_agent(tmp_path: Path) -> None:
    site = Site(tmp_path, "sleep 600")
    node = site.nodes[0]
    site.hear(node)
    node.tend()
    site.hear(node)
    assert node.actor.runs_hook
    node.actor.forget(node.job)  # the job is over; the agent stays until the hook has ended
    assert node.actor.runs_hook
    node.actor.close()
    assert not node.actor.runs_hook
