"""Says what is wrong with a job. Pure functions of one immutable snapshot.

`judge` runs the stages in order of what they can prove; of each root of a hang the first that has something to say is
right, because each later one is weaker: different signatures at one collective; ranks that are gone; a group that a
member has destroyed; a group that one side made and the others did not; a circle of waits; ranks that came to another
address, that wait for a group which others go on without, or that never came; ranks outside that stand still or are
late; all inside and nothing moves; all known members inside, where not all are known; and, while nothing hangs,
histories that differ, and what ranks found out about themselves. What will hang is foretold beside whatever they say.

Ranks that were not set up alike are told of beside everything else, too.
What is wrong with saves is said besides, unless something hangs: the ranks that do not save wait for those that do.
"""

from dataclasses import replace

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.verdict import Certainty, Verdict
from ncclwatch_server.judge.by_files import by_files
from ncclwatch_server.judge.every_root import every_root
from ncclwatch_server.judge.rules.circles import deadlocks
from ncclwatch_server.judge.rules.desync import desyncs
from ncclwatch_server.judge.rules.drift.checked_alone import checked_alone
from ncclwatch_server.judge.rules.drift.ends import with_drift
from ncclwatch_server.judge.rules.drift.findings import drifts, findings
from ncclwatch_server.judge.rules.endings import endings
from ncclwatch_server.judge.rules.extra_group import extra_groups
from ncclwatch_server.judge.rules.group_destroyed import abandoned
from ncclwatch_server.judge.rules.mismatch import mismatches
from ncclwatch_server.judge.rules.outside import outsiders
from ncclwatch_server.judge.rules.predicted_batches import predictions
from ncclwatch_server.judge.rules.random_states import half_restored
from ncclwatch_server.judge.rules.refused_devices import refused_devices
from ncclwatch_server.judge.rules.rendezvous import insiders, missing, scattered
from ncclwatch_server.judge.rules.saves import bad_saves
from ncclwatch_server.judge.rules.shared_devices import shared
from ncclwatch_server.judge.rules.stopped_device import stopped_devices
from ncclwatch_server.judge.rules.undetermined import unnamed
from ncclwatch_server.judge.rules.unseen_host import unseen_hosts
from ncclwatch_server.judge.rules.without_file import records_that_end, without_file
from ncclwatch_server.judge.theory.case import Case, hosts_words, open_case
from ncclwatch_server.judge.theory.histories.call_sites import source_line
from ncclwatch_server.judge.theory.waits.waiters import waiters_of
from ncclwatch_server.judge.witnesses import heard

__all__ = ["OTHERS", "ROOTS", "judge"]

ROOTS = (
    refused_devices,
    stopped_devices,
    mismatches,
    endings,
    abandoned,
    extra_groups,
    deadlocks,
    scattered,
    checked_alone,
    unseen_hosts,
    without_file,
    missing,
    outsiders,
    insiders,
    unnamed,
)
OTHERS = (
    records_that_end,
    desyncs,
    shared,
    half_restored,
)


def judge(snapshot: JobSnapshot) -> tuple[Verdict, ...]:
    """Return what is wrong with a job at this moment, the empty tuple if nothing is."""
    case = open_case(snapshot)
    verdicts = every_root(case, ROOTS) or next((found for stage in OTHERS if (found := stage(case))), ())
    drawn = (replace(_with_sources(case, verdict), waiters=waiters_of(case, verdict)) for verdict in verdicts)
    said = tuple(heard(case.snapshot, by_files(case, _with_hosts(case, verdict))) for verdict in drawn)
    if all(verdict.certainty is Certainty.LATE for verdict in said):
        said += bad_saves(case)
    differs = findings(snapshot.setup, snapshot.habits)
    said = tuple(with_drift(case, verdict, differs) for verdict in said)
    return said + predictions(case) + drifts(snapshot, differs)


def _with_sources(case: Case, verdict: Verdict) -> Verdict:
    """Add the source lines at which histories parted."""
    parted = verdict.first_divergence
    if parted is None:
        return verdict
    lines = (source_line(case.views.values(), site) for site in (parted.culprit_site, parted.victim_site))
    culprits, victims = lines
    return replace(verdict, first_divergence=replace(parted, culprit_source=culprits, victim_source=victims))


def _with_hosts(case: Case, verdict: Verdict) -> Verdict:
    """Add where the hosts stand whose devices wait: that line is the one a debugger shows, and not the culprit's."""
    ranks = sorted({*(culprit.rank for culprit in verdict.culprits), *verdict.victims})
    hosts = hosts_words(case, ranks)
    if not hosts:
        return verdict
    words = f"{verdict.explanation} The devices wait, and the hosts stand later in the program: {hosts}."
    return replace(verdict, explanation=words)
