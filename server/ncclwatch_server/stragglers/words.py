"""Words the verdict on one slow rank for people."""

from collections.abc import Callable
from dataclasses import dataclass

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.slowness import SlowKind, Slowness
from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Evidence, Severity, Verdict
from ncclwatch.contract.words.text import ranks_words, seconds_words
from ncclwatch_server.stragglers.closely import Detail
from ncclwatch_server.stragglers.tracker import Finding

EXCESS_MIN = 0.02  # a smaller difference between ranks is not told
VICTIMS_MAX = 256
BUCKETS_MAX = 4

_DOING: dict[SlowKind, str] = {
    SlowKind.DATA_LOADING: "it waits for its data loader",
    SlowKind.GARBAGE_COLLECTION: "Python's garbage collector stops it again and again",
    SlowKind.CPU_CONTENTION: "it is ready to run and other processes have its core",
    SlowKind.CPU_THROTTLING: "its control group (container) has used up its CPU quota",
    SlowKind.CPU_STEAL: "its machine is a guest, and the host gives its cores to others",
    SlowKind.STOPPED: "something stops and continues its process",
    SlowKind.HOST_IO: "it waits for disk or network storage in the kernel",
    SlowKind.SAVING: "it saves more than the others",
    SlowKind.GPU: "its GPU is slowed down",
    SlowKind.COMPUTE: "it computes longer than the others",
    SlowKind.OUTSIDE: "it waits for something of its own, outside of collectives, loaders and saves",
    SlowKind.SEQUENCE_IMBALANCE: "it gets bigger batches than the others",
    SlowKind.PIPELINE_IMBALANCE: "its pipeline stage has more to do",
    SlowKind.NETWORK: "all ranks spend it inside of collectives, and none of them comes late",
    SlowKind.FAIL_SLOW: "all ranks have become slower together",
}

_ADVICE: dict[SlowKind, str] = {
    SlowKind.DATA_LOADING: (
        "Make this rank's data come sooner: more workers and prefetching (DataLoader(num_workers=..., "
        "prefetch_factor=..., persistent_workers=True)), a cache or local copy of its shard, cheaper transforms; "
        "compare its storage mount and its files with those of the other ranks."
    ),
    SlowKind.GARBAGE_COLLECTION: (
        "Call gc.freeze() after setup and gc.disable(), then gc.collect() on all ranks at the same step (every few "
        "hundred), and look why this rank makes more objects in reference cycles than the others."
    ),
    SlowKind.CPU_CONTENTION: (
        "Give this rank a core of its own: see with top on its host which process runs there, move or stop it, pin "
        "ranks and their loaders apart (taskset, numactl, --cpu-bind), and lower OMP_NUM_THREADS or num_workers if "
        "the host has fewer cores than the ranks use."
    ),
    SlowKind.CPU_THROTTLING: (
        "Raise the CPU limit of this rank's container (resources.limits.cpu, cpu.max), or take the limit away and "
        "keep the request; cpu.stat of its control group shows nr_throttled grow."
    ),
    SlowKind.CPU_STEAL: "Move the job to another host or to dedicated instances: the hypervisor overcommits this one.",
    SlowKind.STOPPED: (
        "Find out what sends SIGSTOP and SIGCONT to this process on its host (a debugger or profiler, cpulimit, a "
        "batch system that suspends jobs), and end it."
    ),
    SlowKind.HOST_IO: (
        "Look at the storage of this host (iostat -x, nfsiostat, dmesg): it answers more slowly than that of the "
        "other hosts. Cache data locally, and write checkpoints in the background."
    ),
    SlowKind.SAVING: (
        "Save less often or in the background (dcp.async_save), or let all ranks share the work: a sharded checkpoint."
    ),
    SlowKind.GPU: (
        "Look at this GPU (nvidia-smi -q -d PERFORMANCE,ECC,TEMPERATURE; dmesg | grep Xid): cool it, check its power "
        "supply, reset it, or take its host out of the job."
    ),
    SlowKind.COMPUTE: (
        "Compare this rank's host with the others: clocks and governor of CPU and GPU, number of threads "
        "(OMP_NUM_THREADS), library versions; then its work: does it log, evaluate or post-process more than they do? "
        "Let the other ranks share the work, or replace the slow host."
    ),
    SlowKind.OUTSIDE: (
        "See what this rank does between its collectives (ncclwatch diagnose, or py-spy dump --pid on its host): a "
        "sleep, a lock, a request to a service or a read that is slow on this host alone."
    ),
    SlowKind.SEQUENCE_IMBALANCE: (
        "No machine is bad: deal out work by its cost. Sort or pack samples by length, give all ranks batches of one "
        "data bucket in the same step, or balance them by tokens instead of samples."
    ),
    SlowKind.PIPELINE_IMBALANCE: (
        "No machine is bad: move layers from this stage to the ones that wait (the loss and the output layer count as "
        "several), or give the stage more ranks."
    ),
    SlowKind.NETWORK: (
        "Look at the network between the hosts: link errors and speeds (ethtool -S, ibstat, NCCL_DEBUG=INFO for the "
        "transport chosen), other jobs on the same switches. Or, if batches or the model have grown then, at nothing."
    ),
    SlowKind.FAIL_SLOW: (
        "Look at what changed at that moment: if the program did not (bigger batches, another phase), then clocks, "
        "temperature and power of all hosts, the storage they share, or a neighbour that came."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """What a server knows of where ranks are."""

    host_of: Callable[[int], str]
    site_of: Callable[[int], CallSite | None]  # of the loop over data
    detail_of: Callable[[int], Detail] = lambda _: Detail()
    on_gpus: bool = False


def verdict_of(finding: Finding, world_size: int, where: Whereabouts, now: float) -> Verdict:
    """Return what is told of a finding at a moment of the clock that it was found by."""
    slowness = Slowness(
        kind=finding.kind,
        share=round(finding.share, 4),
        lost_s=round(finding.lost_s, 1),
        rank_hours=round(finding.lost_s * finding.waiting / 3600, 4),
        since_s=round(now - finding.since, 1),
        persistent=finding.persistent,
        on_gpus=where.on_gpus,
    )
    return Verdict(
        cause=Cause.STRAGGLER,
        certainty=Certainty.LATE,
        severity=Severity.WARNING if finding.severe else Severity.INFO,
        summary=_summary(finding, slowness),
        explanation=_explanation(finding, slowness, where),
        advice=_ADVICE[finding.kind],
        culprits=tuple(_culprit(finding.kind, rank, where) for rank in finding.ranks),
        victims=tuple(rank for rank in range(min(world_size, VICTIMS_MAX)) if rank not in finding.ranks)
        if finding.ranks
        else (),
        onset_s=now - finding.since,
        slowness=slowness,
        evidence=_evidence(finding, where),
    )


def _summary(finding: Finding, slowness: Slowness) -> str:
    if finding.slowdown is not None:
        return (
            f"all steps take {finding.slowdown.ratio:.2g} times as long since {seconds_words(slowness.since_s)} ago: "
            f"{_DOING[finding.kind]}"
        )
    if finding.stage:
        return (
            f"the pipeline waits {finding.share:.0%} of the time for the stage of {ranks_words(finding.stage)}: "
            f"{_DOING[finding.kind]}"
        )
    who = ranks_words(finding.ranks)
    verb = "makes" if len(finding.ranks) == 1 else "make"
    often = "all the time" if slowness.persistent else "now and then"
    return f"{who} {verb} the others wait {finding.share:.0%} of the time, {often}: {_DOING[finding.kind]}"


def _explanation(finding: Finding, slowness: Slowness, where: Whereabouts) -> str:
    hours = "GPU-hours" if where.on_gpus else "rank-hours"
    lost = (
        f"That has cost {seconds_words(slowness.lost_s)} of the job since it began {seconds_words(slowness.since_s)} "
        f"ago, {slowness.rank_hours:.3g} {hours}."
    )
    change = finding.slowdown
    if change is not None:
        blocked = f"of which ranks were blocked {change.blocked_before:.0%} before and {change.blocked_after:.0%} now"
        return (
            f"An operation took {seconds_words(change.before_s)} before and takes {seconds_words(change.after_s)} now, "
            f"{blocked}, by the rank that waits least. {lost}"
        )
    if finding.stage:
        return f"The ranks of this stage wait for messages less than those of the others, all of them alike. {lost}"
    if finding.by_pauses:
        return (
            f"Again and again the others waited for as long as {ranks_words(finding.ranks)} stood still: what is "
            f"recorded of that explains {finding.share:.0%} of the time. {lost}"
        )
    if finding.by_messages:
        return (
            f"In {finding.late_in} of {finding.windows} windows {ranks_words(finding.ranks)} was blocked in sends and "
            f"receives for less of the time than each of the others. {lost}"
        )
    return (
        f"In {finding.late_in} of {finding.windows} windows {ranks_words(finding.ranks)} came last: blocked in "
        f"collectives, of all groups together, for less of the time than the ranks like {_it(finding)}. {lost}"
    )


def _it(finding: Finding) -> str:
    return "it" if len(finding.ranks) == 1 else "them"


def _culprit(kind: SlowKind, rank: int, where: Whereabouts) -> Culprit:
    site = where.site_of(rank) if kind is SlowKind.DATA_LOADING else None
    seen = where.detail_of(rank)
    return Culprit(
        rank=rank, host=where.host_of(rank), pid=seen.pid, device=seen.device, call_site=site, doing=_DOING[kind]
    )


def _evidence(finding: Finding, where: Whereabouts) -> tuple[Evidence, ...]:
    return _of_batches(finding) + _of_gradients(finding, where) + _of_spending(finding)


def _of_gradients(finding: Finding, where: Whereabouts) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            source="ring",
            rank=rank,
            fact=f"{slow.label} comes {slow.own_s * 1e3:.0f} ms after the bucket before it, "
            f"{slow.like_s * 1e3:.0f} ms on the others",
        )
        for rank in finding.ranks[:1]
        for slow in where.detail_of(rank).buckets[:BUCKETS_MAX]
    )


def _of_batches(finding: Finding) -> tuple[Evidence, ...]:
    mixture = finding.mixture
    batches = mixture.slower[:BUCKETS_MAX] if mixture is not None and finding.ranks else ()
    return tuple(
        Evidence(
            source="ring",
            rank=finding.ranks[0],
            fact=f"batches of data bucket {name} take it {seconds_words(own_s)} each, and {seconds_words(like_s)} on "
            f"the others",
        )
        for name, own_s, like_s in batches
    )


def _of_spending(finding: Finding) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            source="proc" if kind in _SEEN_FROM_OUTSIDE else "ring",
            rank=rank,
            fact=f"{kind.value.replace('_', ' ')}: {share + finding.usual.get(kind, 0.0):.0%} of its time, "
            f"{finding.usual.get(kind, 0.0):.0%} of that of its like",
        )
        for rank in finding.ranks[:1]
        for kind, share in finding.excess.items()
        if share >= EXCESS_MIN
    )


_SEEN_FROM_OUTSIDE = frozenset(
    {
        SlowKind.STOPPED,
        SlowKind.CPU_THROTTLING,
        SlowKind.CPU_STEAL,
        SlowKind.CPU_CONTENTION,
        SlowKind.HOST_IO,
        SlowKind.COMPUTE,
    }
)
