"""The policy that is shipped, on real jobs: each cause once, and what the policy names for it is what happens.

A verdict does not have to stand first, as it has to in the shipped policy if it is STALLED: that is in the unit tests.
"""

import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import pytest

from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.on_hang.default_policy import DEFAULT_POLICY
from ncclwatch.contract.on_hang.policy import Action, default_policy
from tests.integration.cluster import Cluster, read_until
from tests.integration.launch import PROGRAMS
from tests.integration.network import ports_of
from tests.integration.real_jobs import until
from tests.zoo import injection
from tests.zoo.jobs import Job
from tests.zoo.truth import Expect, Truth, load_all

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PROVEN, STALLED = "PROVEN", "STALLED"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
ACTED_S = 120.0
CAPTURES = "captures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program with a hang of some cause, and what the policy says of that."""

    cause: Cause
    certainty: str
    program: str  # its id in the zoo, a kind of fault that is drawn, or a file of `programs`

    @property
    def action(self) -> Action:
        return default_policy().action(self.cause.value, self.certainty)


CASES = (
    Case(cause=Cause.RANK_CONDITIONAL_COLLECTIVE, certainty=PROVEN, program="z01"),
    Case(cause=Cause.UNEVEN_BATCHES, certainty=PROVEN, program="z10"),
    Case(cause=Cause.DIVERGENT_CONTROL_FLOW, certainty=PROVEN, program="z15"),
    Case(cause=Cause.COLLECTIVE_ORDER, certainty=PROVEN, program="z25"),
    Case(cause=Cause.P2P_DEADLOCK, certainty=PROVEN, program="z29"),
    Case(cause=Cause.SIGNATURE_MISMATCH, certainty=PROVEN, program="z27"),
    Case(cause=Cause.GROUP_DESTROYED, certainty=PROVEN, program="z43"),
    Case(cause=Cause.CONFIGURATION_DRIFT, certainty=PROVEN, program="z51"),
    Case(cause=Cause.RANK_EXITED, certainty=PROVEN, program="left_by_one.py"),
    Case(cause=Cause.INIT_INCOMPLETE, certainty=PROVEN, program="one_group_more.py"),
    Case(cause=Cause.HOST_STALL, certainty=PROVEN, program="z36"),
    Case(cause=Cause.PROCESS_FROZEN, certainty=STALLED, program="f01"),
    Case(cause=Cause.HOST_STALL, certainty=STALLED, program="f06"),
    Case(cause=Cause.DATA_STALL, certainty=STALLED, program="z34"),
    Case(cause=Cause.STUCK_SAVE, certainty=STALLED, program="dead_disk"),
    Case(cause=Cause.INIT_INCOMPLETE, certainty=STALLED, program="z41"),
    Case(cause=Cause.FILESYSTEM_VIEW, certainty=STALLED, program="z40"),
    Case(cause=Cause.SWALLOWED_EXCEPTION, certainty=STALLED, program="z37"),
)
BELOW = {  # tests of this file
    Cause.NODE_LOST: "test_a_job_that_has_lost_a_node_is_ended_for_another_place",
    Cause.TRANSPORT: "test_a_job_whose_nodes_are_cut_off_from_each_other_is_ended_for_another_place",
    Cause.RANK_CRASHED: "test_a_job_with_a_crashed_rank_is_left_to_torchrun_which_starts_it_again",
}
NOT_SEEN = {  # on a job that can run here
    Cause.UNDETERMINED: "live it is critical only where a GPU has stopped",
    Cause.DUPLICATE_DEVICE: "needs NCCL and two ranks on one GPU",
    Cause.RNG_STATE_MISMATCH: "its ranks raise at once, and torchrun has ended them before agents act",
    Cause.CONFLICTING_SAVE: "a warning, for which nothing is done",
    Cause.FAILED_SAVE: "a warning, for which nothing is done",
    Cause.STRAGGLER: "a warning, for which nothing is done",
}


def test_every_cause_is_tried_or_cannot_be() -> None:
    tried = [*{case.cause for case in CASES}, *BELOW, *NOT_SEEN]
    assert sorted(tried) == sorted(Cause)
    assert set(BELOW.values()) <= set(globals())


def program_of(case: Case) -> Truth:
    """Return a program of the zoo, a drawn one, or one of ours."""
    if case.program.endswith(".py"):
        return Truth(
            id="", title="", nproc=2, expect=Expect.HANG, confirmed="", cause=(case.cause.value,),
            program=PROGRAMS / case.program,
        )  # fmt: skip
    for fault in injection.FAULTS:
        if fault.kind == case.program:
            return injection.truth_of(fault, random.Random("shipped policy"), "policy")
    return load_all((case.program,))[0]


def asking(directory: Path) -> dict[str, str]:
    """Return what asks agents to act by the shipped policy at once."""
    policy = directory / "policy.toml"
    policy.write_text(DEFAULT_POLICY.partition("[stalled_for_s]")[0] + "[stalled_for_s]\nother = 0\n")
    return {
        "NCCLWATCH_ON_HANG": "policy",
        "NCCLWATCH_HANG_POLICY": str(policy),
        "NCCLWATCH_CAPTURES": str(directory / CAPTURES),
    }


class Launched:
    """A program under torchrun, whose agents act. Leaving the context ends all of it."""

    def __init__(self, truth: Truth, directory: Path, *, restarts: int = 3) -> None:
        directory.mkdir()
        self.captures = directory / CAPTURES
        self._stderr = directory / "job" / "stderr"
        self.job = Job(
            (
                *(*TORCHRUN, f"--max-restarts={restarts}", f"--nproc-per-node={truth.nproc}"),
                *(str(truth.program), *truth.arguments),
            ),
            directory / "job",
            {
                **asking(directory),
                # Else gloo may find the addresses of the attempt before in torchrun's store.
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            },
        )

    @property
    def said(self) -> str:
        """Return what is on its standard error so far."""
        return self._stderr.read_text(errors="replace") if self._stderr.exists() else ""

    def says(self, *words: str) -> None:
        """Wait until it has written all of these."""
        self._until(lambda: all(each in self.said for each in words) or self.job.exit_code is not None)
        assert [each for each in words if each not in self.said] == [], self.said

    def fails(self) -> None:
        """Wait until it has ended, and not well."""
        self._until(lambda: self.job.exit_code is not None)
        assert self.job.exit_code != 0

    def _until(self, found: Callable[[], bool]) -> None:
        until(found, lambda: self.said, within_s=ACTED_S)

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, *_: object) -> None:
        self.job.__exit__()


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.cause.value}-{case.certainty}")
def test_what_the_policy_names_for_a_cause_happens(case: Case, tmp_path: Path) -> None:
    cause = case.cause.value
    with Launched(program_of(case), tmp_path / "place") as launched:
        if case.action is Action.ABORT:
            launched.says(f"ncclwatch: ending the job (abort): the policy says so for {cause} (")
            launched.fails()
            assert launched.said.count("ncclwatch: ending") == 1
        elif case.action is Action.RESTART:
            again = f"torchrun starts them again, up to 3 times more (restart): the policy says so for {cause} ("
            launched.says(again)
            launched.says(f"ncclwatch: ending the job (abort): it hangs as it did before a restart ({cause})")
            launched.fails()
            assert launched.said.count("ncclwatch: ending") == 2
        else:
            assert case.action is Action.CAPTURE
            launched.says("ncclwatch: it hangs (incident ")
            assert len(list(launched.captures.glob("*.zip"))) == 1
            assert launched.job.exit_code is None
            assert "ncclwatch: ending" not in launched.said


@pytest.mark.long
def test_a_job_with_a_crashed_rank_is_left_to_torchrun_which_starts_it_again(tmp_path: Path) -> None:
    (truth,) = load_all(("f04",))
    with Launched(truth, tmp_path / "place", restarts=1) as launched:
        launched.fails()
        said = launched.said
    assert said.count("ValueError") >= 2, said
    assert "ncclwatch: ending" not in said


@pytest.mark.long
def test_a_job_that_has_lost_a_node_is_ended_for_another_place(tmp_path: Path) -> None:
    with Cluster(2, tmp_path) as cluster:
        jobs = [trains(cluster, number, tmp_path) for number in (0, 1)]
        until(lambda: "connected to" in cluster.log(1))
        read_until(jobs[0], "trains: step 20")
        cluster.take_the_power(1)
        read_until(jobs[0], "ncclwatch: ending the job (restart_elsewhere): the policy says so for node_lost")
        assert jobs[0].wait(ACTED_S) != 0


@pytest.mark.long
def test_a_job_whose_nodes_are_cut_off_from_each_other_is_ended_for_another_place(tmp_path: Path) -> None:
    """What the ranks send each other is lost, and the agents still reach their server."""
    with Cluster(2, tmp_path) as cluster:
        jobs = [trains(cluster, number, tmp_path) for number in (0, 1)]
        until(lambda: "connected to" in cluster.log(1))
        found = until(lambda: re.search(r"other nodes reach its server at port (\d+)", cluster.log(0)))
        assert isinstance(found, re.Match)
        port = int(found[1])
        read_until(jobs[0], "trains: step 20")
        cluster.network.refuses = lambda source, target, frame: not {0, port} & set(ports_of(frame))
        read_until(jobs[0], "ncclwatch: ending the job (restart_elsewhere): the policy says so for transport")
        assert jobs[0].wait(ACTED_S) != 0


def trains(cluster: Cluster, number: int, directory: Path) -> "Popen[str]":
    return cluster.torchrun(number, "trains.py", restarts=3, STEPS_TILL_HANG="0", **asking(directory))
