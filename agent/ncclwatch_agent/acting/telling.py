"""Tells the ranks of a job on this node of its hangs, where they have asked for it: in a file beside each one's ring.

It is written anew each second, see `ncclwatch.contract.on_hang.told`. A rank that cannot be told is named once.
"""

from collections.abc import Iterable

from ncclwatch.contract import config
from ncclwatch.contract.on_hang.hangs import OpenHang
from ncclwatch.contract.on_hang.told import RANKS_MAX, TEXT_CHARS_MAX, Told, ToldVerdict, encode
from ncclwatch.contract.words.printable import one_line
from ncclwatch_agent.log import log
from ncclwatch_agent.ranks.jobs import LocalJob
from ncclwatch_agent.ranks.rank_rows import LocalRank


class Telling:
    """What the ranks of one job are told."""

    def __init__(self) -> None:
        self._beat = 0
        self._files: set[tuple[int, str]] = set()  # rank, name of its file
        self._failed = False

    def go_on(self, job: LocalJob, hangs: Iterable[OpenHang], raised: str) -> None:
        """Tell the hangs that stand, or take back what was told. `raised`: the incident for which ranks raise."""
        verdicts = tuple(_told(job, each) for each in hangs)
        if not verdicts:
            self.end(job)
            return
        self._beat += 1
        data = encode(Told(beat=self._beat, raised=raised, hangs=verdicts))
        for rank in job.ranks.values():
            if rank.listens and not rank.gone:
                self._write(job, rank, data)

    def end(self, job: LocalJob) -> None:
        """Take back what was told."""
        for rank in job.everyone() if self._files else ():
            if (rank.rank, rank.ring.file_name) in self._files:
                rank.place.unlink(rank.ring.file_name + config.TOLD_SUFFIX)
        self._files.clear()

    def _write(self, job: LocalJob, rank: LocalRank, data: bytes) -> None:
        name = rank.ring.file_name
        try:
            rank.place.write(name + config.TOLD_SUFFIX, data)
            self._files.add((rank.rank, name))
        except OSError as error:
            if not self._failed:
                log.warning("job %s: rank %d cannot be told of a hang: %s", job.key.job, rank.rank, error)
            self._failed = True


def _told(job: LocalJob, found: OpenHang) -> ToldVerdict:
    return ToldVerdict(
        incident=found.incident,
        job=job.key.job,
        cause=found.hang.cause,
        certainty=found.hang.certainty,
        sentence=one_line(found.sentence[:TEXT_CHARS_MAX]),
        advice=one_line(found.advice[:TEXT_CHARS_MAX]),
        culprits=tuple(sorted(found.hang.ranks)[:RANKS_MAX]),
    )
