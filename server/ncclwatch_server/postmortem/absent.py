"""Ranks that all others wait for and that are in no operation, or of which there is no file."""

from collections.abc import Sequence

from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Evidence, Severity, Verdict
from ncclwatch.contract.words.text import ADVICE, ranks_words, seconds_words
from ncclwatch_server.postmortem.frontier import Stuck
from ncclwatch_server.postmortem.matter import (
    WAITING_S_MIN,
    Matter,
    Waited,
    at,
    last_words,
    stuck_words,
    waited,
    waiting_evidence,
    waiting_words,
)
from ncclwatch_server.postmortem.roots import Root, outside_roots, reaching, unknown_roots
from ncclwatch_server.postmortem.whereabouts import Whereabouts, whereabouts

VERDICTS_MAX = 4


def absent_ranks(matter: Matter) -> tuple[Verdict, ...]:
    """Judge ranks that never came to an operation while they were in no other."""
    said: list[Verdict] = []
    for root in outside_roots(matter.waits, matter.recordings):
        explained = {rank for verdict in said for rank in verdict.victims}
        if not set(root.victims) <= explained or not root.victims:
            extra = _extra_call(matter, root)
            said += _extra(matter, extra) if extra is not None else _absent(matter, root)
    return tuple(said[:VERDICTS_MAX])


def unknown_ranks(matter: Matter) -> tuple[Verdict, ...]:
    """Judge operations that all ranks with a file have entered, and that are not over."""
    roots = unknown_roots(matter.waits)
    if not roots:
        return ()
    root = roots[0]
    long = waited(matter, root.operations)
    if long.too_short:
        return ()
    lost = tuple(rank for rank in root.ranks if rank not in matter.recordings)
    first = _longest(matter, root.operations)
    who = ranks_words(lost or root.ranks)
    why = f"no file of {who} is here" if lost else _why_unknown(first, root.ranks)
    dead = ": a rank that died or was killed writes none" if lost else ""
    return (
        Verdict(
            cause=Cause.UNDETERMINED,
            certainty=Certainty.STALLED,
            severity=Severity.CRITICAL,
            summary=f"{waiting_words(matter, (first,))} and all others whose files are here have come; {why}.",
            explanation=(
                f"Whether {who} came to {stuck_words(matter, first)} cannot be told, since {why}{dead}. Either it "
                f"never came, or all are inside and the transfer does not end.{_long_words(long)}"
            ),
            advice=(
                f"Find the log or the file of {who} and give it to analyze too. If it ended early, fix what ended it; "
                "if it is as far as the others, look at the network between the hosts."
            ),
            culprits=tuple(Culprit(rank=rank, doing=f"unknown: {why}") for rank in lost or root.ranks),
            victims=root.victims,
            one_of=True,
            group=matter.names[first.roster.key],
            seq=first.seq,
            op=first.op.value,
            onset_s=long.seconds,
            explained=(len(root.victims), len(matter.waits.blocked)),
            evidence=tuple(waiting_evidence(matter, root.operations)),
        ),
    )


def _why_unknown(stuck: Stuck, ranks: tuple[int, ...]) -> str:
    who = ranks_words(ranks)
    if any(rank in stuck.roster.records for rank in ranks):
        return f"the files of {who} are older than those of the others"
    return f"the buffers of {who} have lost what they did in that group"


def _longest(matter: Matter, operations: Sequence[Stuck]) -> Stuck:
    """Return the operation that has been waited in longest, by age on each rank's own clock, then by its members."""
    return max(operations, key=lambda each: (waited(matter, (each,)).seconds, len(each.waiting), -each.seq))


def _extra_call(matter: Matter, root: Root) -> Stuck | None:
    """Return the operation if few have entered it, none of the others ever used its line, and all these are through.

    Then those few made a call of their own; ranks that are merely late have been at that line before.
    """
    found = root.operations
    if len(found) != 1 or found[0].source >= 0:
        return None
    stuck = found[0]
    records = [stuck.roster.records.get(rank) for rank in stuck.absent]
    level = all(record is not None and record.completed == stuck.seq - 1 for record in records)
    if not level or stuck.done or stuck.unknown or len(stuck.waiting) >= len(stuck.absent):
        return None
    sites = {issued.site for issued in stuck.waiting.values()}
    used = {
        issued.site
        for rank in stuck.absent
        for record in matter.recordings[rank].groups.values()
        for issued in record.tail
    }
    return stuck if not sites & used else None


def _extra(matter: Matter, stuck: Stuck) -> tuple[Verdict, ...]:
    """Return the verdict on a call that only few members of a group make."""
    long = waited(matter, (stuck,))
    if long.too_short:
        return ()
    few = tuple(sorted(stuck.waiting))
    known = stuck.issued.site is not None
    what = stuck_words(matter, stuck)
    return (
        Verdict(
            cause=Cause.RANK_CONDITIONAL_COLLECTIVE,
            certainty=Certainty.STALLED,
            severity=Severity.CRITICAL,
            summary=(
                f"only {ranks_words(few)} entered {what}{at(stuck.issued.site)}; {ranks_words(stuck.absent)} "
                "completed everything before it and wait in nothing."
            ),
            explanation=(
                f"A collective completes only when all {len(stuck.roster.members)} members make the call. The others "
                + ("were never at that line." if known else "never came to it; the dumps hold no call sites.")
                + _long_words(long)
            ),
            advice=ADVICE[Cause.RANK_CONDITIONAL_COLLECTIVE],
            culprits=tuple(
                Culprit(rank=rank, call_site=stuck.waiting[rank].site, doing=f"in {what}, alone") for rank in few
            ),
            victims=reaching(matter.waits, few),
            one_of=not known,
            group=matter.names[stuck.roster.key],
            seq=stuck.seq,
            op=stuck.op.value,
            onset_s=long.seconds,
            explained=(len(few), len(matter.waits.blocked)),
            evidence=tuple(waiting_evidence(matter, (stuck,))),
        ),
    )


def _absent(matter: Matter, root: Root) -> tuple[Verdict, ...]:
    """Return the verdict on ranks that have not come."""
    long = waited(matter, root.operations)
    if long.known and long.seconds < WAITING_S_MIN:
        return ()
    first = _longest(matter, root.operations)
    late = tuple(rank for rank in root.ranks if rank in first.absent) or root.ranks
    places = {rank: whereabouts(matter, rank) for rank in root.ranks}
    seen = next((place for place in places.values() if place.cause is not None), places[late[0]])
    direct = tuple(each for each in root.operations if each.seq == first.seq and each.roster is first.roster)
    rest = [rank for rank in root.victims if all(rank not in each.waiting for each in direct)]
    behind = f"; {ranks_words(rest)} {'wait' if len(rest) > 1 else 'waits'} behind them" if rest else ""
    short = long.too_short
    cause = Cause.STRAGGLER if short else seen.cause or Cause.UNDETERMINED
    return (
        Verdict(
            cause=cause,
            certainty=Certainty.LATE if short else Certainty.PROVEN if seen.proven else Certainty.STALLED,
            severity=Severity.INFO if short else Severity.CRITICAL,
            summary=(
                f"{ranks_words(late)} {'have' if len(late) > 1 else 'has'} not come to {stuck_words(matter, first)}"
                f"{_doing(seen)}; {waiting_words(matter, direct)}{behind}."
            ),
            explanation=_explanation(matter, root, late, long, seen),
            advice=_advice(late, cause),
            culprits=tuple(
                Culprit(
                    rank=rank, host=matter.recordings[rank].host, call_site=places[rank].site, doing=places[rank].doing
                )
                for rank in root.ranks
            ),
            victims=root.victims,
            group=matter.names[first.roster.key],
            seq=first.seq,
            op=first.op.value,
            onset_s=long.seconds,
            explained=(len(root.victims), len(matter.waits.blocked)),
            evidence=_evidence(matter, root, direct),
        ),
    )  # fmt: skip


def _doing(seen: Whereabouts) -> str:
    return f" ({seen.doing})" if seen.doing else ""


def _explanation(matter: Matter, root: Root, late: tuple[int, ...], long: Waited, seen: Whereabouts) -> str:
    who = ranks_words(late).capitalize()
    many = len(late) > 1
    said = [f"{who} {'are' if many else 'is'} in no operation itself, so nobody holds it up." if not many else
            f"{who} are in no operation themselves, so nobody holds them up."]  # fmt: skip
    said.append(f"{ranks_words(root.victims).capitalize()} cannot go on before.")
    if seen.cause is None:
        said.append("Why it does not come, a dump cannot tell: it holds operations, not stacks.")
    cut = [rank for rank in late if not matter.recordings[rank].whole]
    if cut:
        said.append(f"The buffer of {ranks_words(cut)} has lost its older entries.")
    return " ".join(said) + _long_words(long)


def _long_words(long: Waited) -> str:
    if not long.known:
        return (
            " The times of the files do not tell how long it had lasted: if they were taken from a job that was well, "
            "this is only a moment of it."
        )
    if long.too_short:
        return f" That had lasted {seconds_words(long.seconds)} when the files were written, too short for a hang."
    return f" That had lasted {seconds_words(long.seconds)} when the files were written."


def _advice(late: tuple[int, ...], cause: Cause) -> str:
    if cause is not Cause.UNDETERMINED:
        return ADVICE[cause]
    who = ranks_words(late)
    return (
        f"Look at what {who} did after that last operation: its log, or its stack from `py-spy dump --json --pid PID` "
        "while the job still hangs. Give either to `ncclwatch analyze` together with these files."
    )


def _evidence(matter: Matter, root: Root, direct: Sequence[Stuck]) -> tuple[Evidence, ...]:
    facts = []
    for rank in root.ranks[:8]:
        recording = matter.recordings[rank]
        last = last_words(matter, rank)
        fact = f"in no operation; the last one was {last}" if last else "recorded no operation at all"
        facts.append(Evidence(source=recording.source, rank=rank, fact=fact))
        facts += whereabouts(matter, rank).evidence
    others = [each for each in root.operations if each not in direct]
    return tuple(facts + waiting_evidence(matter, (*direct, *others)))
