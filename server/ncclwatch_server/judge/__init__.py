"""Says what is wrong with a job. Pure functions of one immutable snapshot.

`theory` finds what is so: where ranks stand, who waits for whom, and in which roots the waits end. `rules` say why a
root is there: one module for each cause. `verdicts` makes a verdict of both, for every independent root; where nothing
hangs, of what ranks found out about themselves. What will hang is foretold beside whatever they say.

Ranks that were not set up alike are told of beside everything else, too.
What is wrong with saves is said besides, unless something hangs: the ranks that do not save wait for those that do.
"""

from dataclasses import replace

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.verdict import Certainty, Verdict
from ncclwatch_server.judge.by_files import by_files
from ncclwatch_server.judge.explanation import When
from ncclwatch_server.judge.rules.drift.ends import with_drift
from ncclwatch_server.judge.rules.drift.findings import drifts, findings
from ncclwatch_server.judge.telling.excerpts import excerpts_of
from ncclwatch_server.judge.telling.waiters import waiters_of
from ncclwatch_server.judge.telling.words import hosts_words
from ncclwatch_server.judge.theory.case import Case, open_case
from ncclwatch_server.judge.verdicts import verdicts_of, warned, warnings_of
from ncclwatch_server.judge.witnesses import heard

__all__ = ["judge"]


def judge(snapshot: JobSnapshot) -> tuple[Verdict, ...]:
    """Return what is wrong with a job at this moment, the empty tuple if nothing is."""
    case = open_case(snapshot)
    verdicts = verdicts_of(case) or warnings_of(case, When.AT_REST)
    said = tuple(heard(case.snapshot, by_files(case, _completed(case, verdict))) for verdict in verdicts)
    if all(verdict.certainty is Certainty.LATE for verdict in said):
        said += warnings_of(case, When.NO_HANG)
    differs = findings(snapshot.setup, snapshot.habits)
    said = tuple(with_drift(case, verdict, differs) for verdict in said)
    beside = warnings_of(case, When.ALWAYS)
    return said + beside + tuple(warned(case, each) for each in drifts(snapshot, differs))


def _completed(case: Case, verdict: Verdict) -> Verdict:
    """Add who waits for whom, the source at the lines it names, and where the hosts are whose devices wait: a debugger
    shows that line, and it is not the culprit's.
    """
    ranks = sorted({*(culprit.rank for culprit in verdict.culprits), *verdict.victims})
    hosts = hosts_words(case, ranks)
    words = f" The GPUs wait, and the host threads have run ahead: {hosts}." if hosts else ""
    waiters = waiters_of(case, verdict)
    excerpts = excerpts_of(case, verdict, waiters)
    return replace(verdict, waiters=waiters, excerpts=excerpts, explanation=f"{verdict.explanation}{words}")
