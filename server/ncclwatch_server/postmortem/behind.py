"""Nobody waits in any record, and one record ends before the others: a fact for the reader, no hang."""

from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Evidence, Severity, Verdict
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.offline.recording import Recording
from ncclwatch_server.offline.snapshot import is_age_known
from ncclwatch_server.postmortem.frontier import Roster, rosters, through
from ncclwatch_server.postmortem.matter import HANG_S_MIN, Matter, group_words, last_words


def behind(matter: Matter) -> tuple[Verdict, ...]:
    """Tell of ranks whose record lacks collectives that others completed, and could not have without them."""
    found = [
        (roster, ranks)
        for roster in rosters(matter.recordings)
        if roster.comparable and (ranks := _behind(roster, matter))
    ]
    if not found or matter.waits.stuck:
        return ()
    roster, ranks = max(found, key=lambda each: (len(each[0].members), -len(each[1])))
    newest = through(roster)
    ends = min(roster.records[rank].enqueued for rank in ranks)
    group = group_words(matter, roster.key, roster.desc)
    return (
        Verdict(
            cause=Cause.UNDETERMINED,
            certainty=Certainty.LATE,
            severity=Severity.INFO,
            summary=(
                f"the record of {ranks_words(ranks)} ends at #{ends} of {group}, while others completed up to "
                f"#{newest}; no rank waits for another in these files."
            ),
            explanation=(
                f"They could not complete these without {ranks_words(ranks)}. So its file is older than theirs, or its "
                "recorder stopped there."
            ),
            advice=f"If the job hung afterwards, take dumps of all ranks anew, {ranks_words(ranks)} first.",
            culprits=tuple(Culprit(rank=rank, doing=f"last recorded {last_words(matter, rank)}") for rank in ranks),
            victims=(),
            group=matter.names[roster.key],
            seq=ends + 1,
            evidence=tuple(
                Evidence(
                    source=matter.recordings[rank].source, rank=rank, fact=f"last recorded {last_words(matter, rank)}"
                )
                for rank in ranks[:16]
            ),
        ),
    )


def _behind(roster: Roster, matter: Matter) -> tuple[int, ...]:
    newest = through(roster)
    return tuple(
        rank
        for rank, record in roster.records.items()
        if record.enqueued < newest and not _is_fresh(matter.recordings[rank])
    )


def _is_fresh(recording: Recording) -> bool:
    """Say whether a rank was at work when its file was written: then a little behind is what all ranks are."""
    return is_age_known(recording) and recording.written_ns - recording.newest_ns < HANG_S_MIN * 1e9
