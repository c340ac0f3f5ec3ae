"""The hooks of deploy/hooks do to the node at fault what they say, and to no other, with stubs of Slurm and kubectl."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ncclwatch.contract.model.verdict import Culprit
from ncclwatch.contract.on_hang import hook
from ncclwatch.contract.on_hang.hook import HookCall, HookIncident
from ncclwatch.contract.on_hang.hook_process import HookProcess, HookResult

HOOKS = Path(__file__).parents[3] / "deploy/hooks"
INCIDENT = HookIncident(
    id="1a", job="llama", cause="node_lost", certainty="PROVEN", summary="node gpu-07 is lost", advice="replace it",
    culprits=tuple(Culprit(rank=rank, host="gpu-07") for rank in (8, 9)), one_of=False, opened_at="", world_size=16,
)  # fmt: skip
CALL = HookCall(
    action="restart_elsewhere", reason="the policy says so", job="llama", attempt=0, host="gpu-01", capture="",
    culprits_total=2, incident=INCIDENT,
)  # fmt: skip
LEFT_ALONE = (
    replace(CALL, action="abort"),
    replace(CALL, incident=replace(INCIDENT, certainty="STALLED")),
    replace(CALL, incident=replace(INCIDENT, one_of=True)),
)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which stubs of the commands write down how they were called."""
    calls = tmp_path / "calls"
    calls.touch()
    for name in ("scontrol", "kubectl", "sudo"):
        stub = tmp_path / name
        stub.write_text(
            f'#!/bin/sh\n(printf %s "{name}"; printf "|%s" "$@"; echo) >> {calls}\n'
            '[ "$1 $2" != "show job" ] || echo "JobId=$4 Restarts=${RESTARTS:-0} ExcNodeList=$EXCLUDED Power="\n'
        )
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return calls


def run(call: HookCall, name: str, *arguments: str) -> HookResult:
    command = (str(HOOKS / name), *arguments)
    assert hook.problem(command) == ""
    return HookProcess(command, hook.encode(call), 60.0, hook.environment(os.environ, call)).wait()


def test_slurm_drains_the_node_at_fault_with_a_reason(ran: Path) -> None:
    assert run(CALL, "slurm-drain").code == 0
    assert run(CALL, "slurm-drain", "sudo", "-n").code == 0
    drained = "scontrol|update|NodeName=gpu-07|State=DRAIN|Reason=ncclwatch node_lost 1a llama"
    assert ran.read_text().splitlines() == [drained, f"sudo|-n|{drained}"]


def test_kubernetes_labels_and_cordons_the_node_of_the_pod(ran: Path) -> None:
    pods = tuple(Culprit(rank=rank, host=f"gpu-07/train-{rank}") for rank in (8, 9))
    assert run(replace(CALL, incident=replace(INCIDENT, culprits=pods)), "kubernetes-cordon").code == 0
    assert ran.read_text().splitlines() == [
        "kubectl|label|node|gpu-07|ncclwatch/hang=node_lost|--overwrite",
        "kubectl|cordon|gpu-07",
    ]


OF_SLURM = replace(CALL, job="team/slurm-4711.0")
SHOWN = "scontrol|show|job|-o|4711"


@pytest.mark.parametrize(("excluded", "then"), [("(null)", "gpu-07"), ("gpu-[01-02]", "gpu-[01-02],gpu-07")])
def test_a_job_of_slurm_is_requeued_without_the_node_at_fault(
    ran: Path, monkeypatch: pytest.MonkeyPatch, excluded: str, then: str
) -> None:
    monkeypatch.setenv("EXCLUDED", excluded)
    assert run(OF_SLURM, "slurm-requeue").code == 0
    assert ran.read_text().splitlines() == [
        SHOWN,
        "scontrol|requeuehold|4711",
        f"scontrol|update|JobId=4711|ExcNodeList={then}",
        "scontrol|release|4711",
    ]


def test_a_job_of_slurm_is_requeued_on_any_nodes_where_none_is_at_fault(ran: Path) -> None:
    assert run(replace(OF_SLURM, action="restart"), "slurm-requeue").code == 0
    assert ran.read_text().splitlines() == [SHOWN, "scontrol|requeue|4711"]


def test_a_job_of_slurm_is_released_though_its_nodes_could_not_be_excluded(ran: Path) -> None:
    stub = ran.parent / "scontrol"
    stub.write_text(stub.read_text() + '[ "$1" != update ] || exit 1\n')
    assert run(OF_SLURM, "slurm-requeue").code == 1
    assert ran.read_text().splitlines()[-1] == "scontrol|release|4711"


@pytest.mark.parametrize(
    ("call", "because"),
    [
        (replace(OF_SLURM, job="llama"), "not the name of a job of Slurm; is NCCLWATCH_JOB set?"),
        (replace(OF_SLURM, job="slurm-1.0;x"), "not the name of a job of Slurm; is NCCLWATCH_JOB set?"),
        (replace(OF_SLURM, incident=replace(INCIDENT, one_of=True)), "a look is needed"),
        (replace(OF_SLURM, incident=replace(INCIDENT, culprits=(Culprit(rank=1, host="a,b"),))), "look is needed"),
    ],
)
def test_a_job_of_slurm_is_not_requeued_on_a_guess(ran: Path, call: HookCall, because: str) -> None:
    result = run(call, "slurm-requeue")
    assert (result.code, ran.read_text().replace(f"{SHOWN}\n", "")) == (1, "")
    assert result.lines[-1].endswith(because)


@pytest.mark.parametrize(("restarts", "arguments"), [("3", ()), ("1", ("1",))])
def test_a_job_of_slurm_is_requeued_as_often_as_slurm_counts(
    ran: Path, monkeypatch: pytest.MonkeyPatch, restarts: str, arguments: tuple[str, ...]
) -> None:
    """torchrun begins to count anew in a job that was requeued."""
    monkeypatch.setenv("RESTARTS", restarts)
    result = run(replace(OF_SLURM, attempt=0), "slurm-requeue", *arguments)
    assert (result.code, ran.read_text().splitlines()) == (1, [SHOWN])
    assert result.lines[-1].endswith(f"has restarted it {restarts} times, and {restarts} are allowed")


def test_a_job_of_slurm_that_its_policy_ends_for_good_is_not_requeued(ran: Path) -> None:
    assert run(replace(OF_SLURM, action="abort"), "slurm-requeue").code == 0
    assert ran.read_text() == ""


@pytest.mark.parametrize("name", ["slurm-drain", "kubernetes-cordon"])
def test_nothing_is_done_where_no_node_is_surely_at_fault(ran: Path, name: str) -> None:
    assert [run(call, name).code for call in LEFT_ALONE] == [0, 0, 0]
    assert ran.read_text() == ""


@pytest.mark.parametrize("name", ["slurm-drain", "kubernetes-cordon"])
@pytest.mark.parametrize("hosts", [("-h",), ("gpu-[01-99]",), ("a b",), ("a", "b", "c"), ("",)])
def test_names_that_are_no_nodes_and_many_nodes_are_left_to_people(
    ran: Path, name: str, hosts: tuple[str, ...]
) -> None:
    culprits = tuple(Culprit(rank=rank, host=host) for rank, host in enumerate(hosts))
    result = run(replace(CALL, incident=replace(INCIDENT, culprits=culprits)), name)
    assert (result.code, ran.read_text()) == (1, "")
    assert result.lines[-1].endswith("a look is needed")
