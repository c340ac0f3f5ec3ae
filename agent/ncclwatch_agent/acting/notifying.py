"""Notifies the ranks of a job on this node of its hangs, if they asked for it: in a file beside each ring.

The file is rewritten each second, see `ncclwatch.contract.on_hang.notice`. Only the first failure to write is logged.
"""

from collections.abc import Iterable

from ncclwatch.contract import config
from ncclwatch.contract.on_hang.hangs import OpenHang
from ncclwatch.contract.on_hang.notice import RANKS_MAX, TEXT_CHARS_MAX, HangVerdict, Notice, encode
from ncclwatch.contract.words.printable import one_line
from ncclwatch_agent.log import log
from ncclwatch_agent.ranks.jobs import LocalJob
from ncclwatch_agent.ranks.rank_rows import LocalRank


class Notifier:
    """The notices to the ranks of one job."""

    def __init__(self) -> None:
        self._beat = 0
        self._files: set[tuple[int, str]] = set()  # rank, name of its file
        self._failed = False

    def update(self, job: LocalJob, hangs: Iterable[OpenHang], raised: str) -> None:
        """Write the open hangs, or withdraw the notices if there are none. `raised`: the incident that ranks raise."""
        verdicts = tuple(_verdict(job, each) for each in hangs)
        if not verdicts:
            self.withdraw(job)
            return
        self._beat += 1
        data = encode(Notice(beat=self._beat, raised=raised, hangs=verdicts))
        for rank in job.ranks.values():
            if rank.wants_notices and not rank.gone:
                self._write(job, rank, data)

    def withdraw(self, job: LocalJob) -> None:
        """Remove the notices."""
        for rank in job.everyone() if self._files else ():
            if (rank.rank, rank.ring.file_name) in self._files:
                rank.place.unlink(rank.ring.file_name + config.NOTICE_SUFFIX)
        self._files.clear()

    def _write(self, job: LocalJob, rank: LocalRank, data: bytes) -> None:
        name = rank.ring.file_name
        try:
            rank.place.write(name + config.NOTICE_SUFFIX, data)
            self._files.add((rank.rank, name))
        except OSError as error:
            if not self._failed:
                log.warning("job %s: cannot notify rank %d of a hang: %s", job.key.job, rank.rank, error)
            self._failed = True


def _verdict(job: LocalJob, found: OpenHang) -> HangVerdict:
    return HangVerdict(
        incident=found.incident,
        job=job.key.job,
        cause=found.hang.cause,
        certainty=found.hang.certainty,
        sentence=one_line(found.sentence[:TEXT_CHARS_MAX]),
        advice=one_line(found.advice[:TEXT_CHARS_MAX]),
        culprits=tuple(sorted(found.hang.ranks)[:RANKS_MAX]),
    )
