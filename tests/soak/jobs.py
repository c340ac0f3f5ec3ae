"""Runs one small job, and waits until the server has said of it what is so."""

import contextlib
import json
import random
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from tests.integration.launch import environment
from tests.ports import free_port
from tests.zoo.forking.torch_once import forked

PROGRAM = Path(__file__).with_name("program.py")
WRONG = {
    "alone": frozenset({"rank_conditional_collective"}),
    "killed": frozenset({"rank_crashed"}),
    "raises": frozenset({"rank_crashed"}),
    "stopped": frozenset({"process_frozen"}),
}  # and what it is told as
WRONG_EVERY = 25
RANKS = 2
ENDS_S_MAX = 120.0
TOLD_S_MAX = 90.0
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """One job that is to be run."""

    number: int
    wrong: str  # "": nothing is
    at: int  # step

    @property
    def name(self) -> str:
        """Name of the job: teams run one after the other."""
        return f"team-{self.number % 7}/run-{self.number}"


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of it."""

    plan: Plan
    fault: str  # "": all was right
    told_s: float = 0.0  # from its start until the server said what is wrong


def plans(count: int, seed: int) -> list[Plan]:
    """Return jobs, one in `WRONG_EVERY` of which goes wrong."""
    rng = random.Random(seed)
    kinds = list(WRONG)
    return [
        Plan(
            number,
            kinds[number // WRONG_EVERY % len(kinds)] if number % WRONG_EVERY == WRONG_EVERY - 1 else "",
            rng.randrange(2, 8),
        )
        for number in range(count)
    ]


def carried_out(plan: Plan, directory: Path, url: str) -> Ended:
    """Run a job; what it leaves running is killed."""
    port = str(free_port())
    began = time.monotonic()
    with (directory / "ranks.log").open("ab") as log:
        ranks = [
            subprocess.Popen(
                forked(PROGRAM, plan.wrong or "nothing", str(plan.at)),
                env=environment(
                    directory / "runtime", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                    LOCAL_WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, NCCLWATCH_JOB=plan.name,
                    NCCLWATCH_SERVER=url, NCCLWATCH_TERMINAL="0",
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            for rank in range(RANKS)
        ]  # fmt: skip
    try:
        if plan.wrong:
            causes = _told(url, plan.name, began + TOLD_S_MAX)
            right = bool(causes) and causes <= WRONG[plan.wrong]
            fault = "" if right else f"told as {', '.join(sorted(causes)) or 'nothing'}"
            return Ended(plan, fault, time.monotonic() - began)
        codes = [rank.wait(ENDS_S_MAX) for rank in ranks]
        causes = _critical(url, plan.name)
        said = f"told as {', '.join(sorted(causes))}, and it is healthy" if causes else ""
        return Ended(plan, f"ended with {codes}" if any(codes) else said)
    except subprocess.TimeoutExpired:
        return Ended(plan, f"did not end within {ENDS_S_MAX:.0f} s")
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.kill()
            rank.wait()


def _told(url: str, job: str, deadline: float) -> frozenset[str]:
    causes: frozenset[str] = frozenset()
    while not causes and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        causes = _critical(url, job)
    return causes


def _critical(url: str, job: str) -> frozenset[str]:
    with urlopen(f"{url}/api/v1/incidents?job={quote(job, safe='')}&severity=critical", timeout=30) as answer:
        return frozenset(incident["cause"] for incident in json.load(answer))
