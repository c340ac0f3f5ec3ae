"""`ncclwatch run` runs the hook of its policy once for a hang, before it ends its command."""

import json
from pathlib import Path

import pytest

from ncclwatch.cli.client.answers import Incident, Node
from ncclwatch.cli.running.hooks import CommandHooks
from ncclwatch.contract.machine import boot
from ncclwatch.contract.model.verdict import Culprit
from ncclwatch.contract.on_hang.decision import Decision
from ncclwatch.contract.on_hang.hook import HOURLY_MAX, PER_ATTEMPT_MAX
from ncclwatch.contract.on_hang.policy import Action, parse

ABORT, REPORT = Decision(Action.ABORT, "the policy says so"), Decision(Action.REPORT, "the policy says so")


class Command:
    """What a command has run and told."""

    def __init__(self, tmp_path: Path, text: str = "exit 0", *, of_several: bool = False) -> None:
        self.told: list[str] = []
        self.ran = tmp_path / "ran"
        script = self.script = tmp_path / "on-hang"
        script.write_text(f"#!/bin/sh\ncat >> {self.ran}\n{text}\n")
        script.chmod(0o755)
        policy = parse(f"hook = '{script}'\nhook_timeout_s = 5", "here")
        self.hooks = CommandHooks(policy, self.told.append, of_several=of_several, clock=lambda: 0.0)

    def run(self, incident: str, decision: Decision = ABORT, *, attempt: int = 0, nodes: tuple[Node, ...] = ()) -> None:
        found = Incident(
            id=incident, job="llama", state="open", cause="process_frozen", certainty="PROVEN", severity="critical",
            summary="rank 1 is stopped", advice="restart it", opened_at="2026-11-20T10:00:00Z", world_size=2,
            culprits=(Culprit(rank=1, host="node1", device="cuda:1"),),
        )  # fmt: skip
        self.hooks.run(found, decision, attempt=attempt, capture="/c.zip", nodes=nodes)

    @property
    def calls(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.ran.read_text().splitlines()] if self.ran.exists() else []


def test_an_end_waits_for_it_and_it_is_run_once_with_what_is_known(tmp_path: Path) -> None:
    command = Command(tmp_path, "echo drained; exit 3")
    for _ in range(3):
        command.run("1a", attempt=1)
    (call,) = command.calls
    assert (call["action"], call["attempt"], call["capture"]) == ("abort", 1, f"{boot.host_name()}:/c.zip")
    incident = call["incident"]
    assert isinstance(incident, dict)
    assert (incident["id"], incident["summary"], incident["world_size"]) == ("1a", "rank 1 is stopped", 2)
    assert command.told[0] == f"ncclwatch: running hook {command.script} (abort; incident 1a)\n"
    assert command.told[1].startswith(f"ncclwatch: hook {command.script} finished with 3 in ")
    assert command.told[2:] == ["ncclwatch:   drained\n"]


def test_a_report_does_not_wait_for_it(tmp_path: Path) -> None:
    command = Command(tmp_path, "sleep 0.5")
    command.run("1a", REPORT)
    assert command.hooks.running
    assert len(command.told) == 1
    command.hooks.tell_ended(wait=True)
    assert (command.hooks.running, len(command.told), len(command.calls)) == (False, 2, 1)


def test_it_is_run_so_often_for_an_attempt_and_within_an_hour(tmp_path: Path) -> None:
    command = Command(tmp_path)
    for number in range(PER_ATTEMPT_MAX + 1):
        command.run(f"a{number}")
    assert len(command.calls) == PER_ATTEMPT_MAX
    assert command.told[-1].endswith("it has been run 10 times for this attempt of the job\n")
    for number in range(HOURLY_MAX):
        command.run(f"b{number}", attempt=1 + number // 5)
    assert len(command.calls) == HOURLY_MAX
    assert command.told[-1].endswith("hooks have been run 20 times here within an hour\n")


@pytest.mark.parametrize(("lowest", "connected", "runs"), [("here", True, 1), ("far", True, 0), ("far", False, 1)])
def test_of_several_nodes_that_of_the_lowest_rank_runs_it(
    tmp_path: Path, lowest: str, connected: bool, runs: int
) -> None:
    names = {"here": boot.host_name(), "far": "far"}
    other = names["far" if lowest == "here" else "here"]
    nodes = (Node(host=other, ranks=(2, 3)), Node(host=names[lowest], ranks=(0, 1), connected=connected))
    command = Command(tmp_path, of_several=True)
    command.run("1a", nodes=nodes)
    assert len(command.calls) == runs
    assert ("is run on far, which has the lowest rank" in command.told[0]) == (not runs)
