"""What is wrong with this job? Pure functions of one immutable snapshot.

`judge` runs the stages in order of what they can prove; the first that has something to say is
right, because each later one is weaker: different signatures at one collective; ranks that are
gone; a circle of waits; ranks that never came or came to another address; ranks outside that
stand still or are late; all inside and nothing moves.
"""

from ncclwatch.contract.model import JobSnapshot, Verdict
from ncclwatch_server.judge.case import open_case
from ncclwatch_server.judge.ended import endings
from ncclwatch_server.judge.outside import outsiders
from ncclwatch_server.judge.parted import deadlocks, mismatches
from ncclwatch_server.judge.rendezvous import insiders, missing, scattered

__all__ = ["STAGES", "judge"]

STAGES = (mismatches, endings, deadlocks, scattered, missing, outsiders, insiders)


def judge(snapshot: JobSnapshot) -> tuple[Verdict, ...]:
    """Return what is wrong with a job at this moment, the empty tuple if nothing is."""
    case = open_case(snapshot)
    for stage in STAGES:
        verdicts = stage(case)
        if verdicts:
            return verdicts
    return ()
