"""What is wrong with this job, by the files it left? The stages in order of what they can prove."""

from ncclwatch.contract.model import Verdict
from ncclwatch_server.postmortem.absent import absent_ranks, unknown_ranks
from ncclwatch_server.postmortem.clashes import circles, insiders, inversions, mismatches
from ncclwatch_server.postmortem.matter import Matter

STAGES = (mismatches, absent_ranks, circles, unknown_ranks, inversions, insiders)


def judge(matter: Matter) -> tuple[Verdict, ...]:
    """Return what is wrong, the empty tuple if nothing is to be seen."""
    for stage in STAGES:
        verdicts = stage(matter)
        if verdicts:
            return verdicts
    return ()
