"""What is wrong with this job, by the files it left? The stages in order of what they can prove."""

from ncclwatch.contract.model.verdict import Cause, Certainty, Severity, Verdict
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.rules.circles import deadlocks
from ncclwatch_server.judge.rules.mismatch import mismatches as parted_mismatches
from ncclwatch_server.judge.rules.rendezvous import scattered
from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.postmortem.absent import absent_ranks, unknown_ranks
from ncclwatch_server.postmortem.behind import behind
from ncclwatch_server.postmortem.clashes import INSIDE_S_MIN, circles, insiders, inversions, mismatches
from ncclwatch_server.postmortem.devices import shared_devices
from ncclwatch_server.postmortem.ended import ended_ranks
from ncclwatch_server.postmortem.matter import Matter, waited, waiting_evidence, waiting_words

RINGS_MAX = 4096


def devices(matter: Matter) -> tuple[Verdict, ...]:
    """Judge what NCCL says of shared GPUs: no group can be made, whatever else went wrong afterwards."""
    return shared_devices(matter.witness.shared, matter.world)


def in_rings(matter: Matter) -> tuple[Verdict, ...]:
    """Let the judge of live jobs look for proofs, where all that is known comes out of rings."""
    views = matter.witness.views
    if not views or set(views) != set(matter.recordings) or len(views) > RINGS_MAX:
        return ()
    case = open_case(matter.snapshot(views))
    for stage in (parted_mismatches, deadlocks, scattered):
        verdicts = stage(case)
        if verdicts:
            return verdicts
    return ()


def reporters(matter: Matter) -> tuple[Verdict, ...]:
    """Say what is left: ranks waited in vain, and who the others of their group are is not recorded."""
    if not matter.waits.stuck:
        return ()
    stuck = max(matter.waits.stuck, key=lambda each: waited(matter, (each,)).seconds)
    long = waited(matter, (stuck,))
    if long.known and long.seconds < INSIDE_S_MIN:
        return ()
    ranks = tuple(sorted(stuck.waiting))
    return (
        Verdict(
            cause=Cause.UNDETERMINED,
            certainty=Certainty.STALLED,
            severity=Severity.CRITICAL,
            summary=f"{waiting_words(matter, (stuck,))}; whom they waited for, these files do not tell.",
            explanation=(
                f"That {ranks_words(ranks)} report it says only that they waited. Who else belongs to that group, or "
                "what the others did, is not recorded."
            ),
            advice=(
                "Give the logs or the Flight Recorder dumps of all ranks to analyze. NCCL writes dumps at a timeout "
                "with TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, to TORCH_FR_DUMP_TEMP_FILE."
            ),
            culprits=(),
            victims=ranks,
            group=matter.names[stuck.roster.key],
            seq=stuck.seq,
            op=stuck.op.value,
            onset_s=long.seconds,
            explained=(len(ranks), len(matter.waits.blocked)),
            evidence=tuple(waiting_evidence(matter, (stuck,))),
        ),
    )


STAGES = (
    devices, in_rings, mismatches, ended_ranks, absent_ranks, circles, unknown_ranks, inversions, insiders, reporters,
    behind,
)  # fmt: skip


def judge(matter: Matter) -> tuple[Verdict, ...]:
    """Return what is wrong, the empty tuple if nothing is to be seen."""
    for stage in STAGES:
        verdicts = stage(matter)
        if verdicts:
            return verdicts
    return ()
