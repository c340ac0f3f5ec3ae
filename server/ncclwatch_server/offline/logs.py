"""Reads the text that ranks, torchrun and NCCL logged: facts by rank, no verdict yet.

The watchdog of a rank tells which of its works timed out, which it enqueued last and which it completed last.
That is a frontier like any other, so logs are judged like dumps: whoever reports a timeout only waited.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ncclwatch.contract.model.devices import SharedDevice
from ncclwatch.contract.model.rank import CallSite, Ending, Op
from ncclwatch.contract.stacks.ownership import is_users_by_path

LINE_CHARS_MAX = 4000
RANKS_MAX = 200_000
DEFAULT_NAME = "0"

_GLOBAL_RANK = re.compile(r"\[rank(\d{1,6})\]:")
_GROUP = re.compile(
    r"\[PG (?:ID \d+ )?(?:PG )?(?:GUID )?(?P<name>[^\s(\]]+?)\s*(?:\((?P<desc>[^)]*)\))? ?Rank (?P<rank>\d{1,6})\]"
)
_BARE_RANK = re.compile(r"\[Rank (\d{1,6})\]")
_WORK = re.compile(
    r"WorkNCCL\(SeqNum=(?P<seq>\d{1,15}), OpType=(?P<op>\w+)"
    r"(?:, NumelIn=(?P<into>\d{1,15}), NumelOut=(?P<out>\d{1,15}))?"
    r", Timeout\(ms\)=(?P<timeout>\d{1,12})\) ran for (?P<ran>\d{1,12}) milliseconds"
)
_STATUS = re.compile(
    r"(?:work: (?P<at>\d{1,15}), )?[Ll]ast enqueued(?: NCCL)? work: (?P<enqueued>-?\d{1,15}), "
    r"last completed(?: NCCL)? work: (?P<completed>-?\d{1,15})"
)
_DUPLICATE = re.compile(r"Duplicate GPU detected : rank (\d{1,6}) and rank (\d{1,6}) both on CUDA device (\w+)")
_SHARED = "Multiple Ranks are using the same GPU"
_NCCL_HOST = re.compile(r"(?P<host>[A-Za-z][\w.\-]{0,250}):\d+:\d+ \[\d+\] .*NCCL WARN")
_RANKS_IN_ALL = re.compile(r"\brank \d+ nranks (\d{1,6})\b")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,7}), in (?P<function>\S{1,200})')
_RAISED = re.compile(
    r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Timeout|Warning|Failure)): ?(?P<text>.*)"
)
_EXIT = re.compile(r"^\s*exitcode\s*:\s*(?P<code>-?\d{1,4})\b")
_EXIT_RANK = re.compile(r"^\s*rank\s*:\s*(?P<rank>\d{1,6})\b")
_EXIT_HOST = re.compile(r"^\s*host\s*:\s*(?P<host>\S+)")

# What makes a line worth a second look; everything else is skipped at the speed of `in`.
_MARKS = (
    "Watchdog",
    "work:",
    "GPU",
    "nranks",
    "Traceback",
    'File "',
    "Error",
    "Exception",
    "exitcode",
    "rank ",
    "host ",
)
OPS = {
    "ALLREDUCE": Op.ALL_REDUCE, "ALLREDUCE_COALESCED": Op.ALL_REDUCE, "BROADCAST": Op.BROADCAST,
    "_BROADCAST_OOP": Op.BROADCAST, "REDUCE": Op.REDUCE, "_REDUCE_OOP": Op.REDUCE, "ALLGATHER": Op.ALL_GATHER,
    "_ALLGATHER_BASE": Op.ALL_GATHER, "ALLGATHER_COALESCED": Op.ALL_GATHER, "REDUCE_SCATTER": Op.REDUCE_SCATTER,
    "_REDUCE_SCATTER_BASE": Op.REDUCE_SCATTER, "GATHER": Op.GATHER, "SCATTER": Op.SCATTER,
    "ALLTOALL": Op.ALL_TO_ALL, "ALLTOALL_BASE": Op.ALL_TO_ALL, "BARRIER": Op.BARRIER, "SEND": Op.SEND, "RECV": Op.RECV,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A work that timed out on one rank."""

    seq: int
    op: str  # as logged: ALLREDUCE
    numel_in: int  # -1: not logged
    numel_out: int
    timeout_s: float
    ran_s: float


@dataclass(slots=True, kw_only=True)
class GroupLines:
    """What one rank logged of one group."""

    desc: str = ""
    enqueued: int = -1
    completed: int = -1
    work: Work | None = None


@dataclass(slots=True, kw_only=True)
class RankLines:
    """What one rank logged."""

    path: str
    host: str = ""
    groups: dict[str, GroupLines] = field(default_factory=dict)
    exception: str = ""
    site: CallSite | None = None
    exit_code: int | None = None
    timed_out: bool = False

    @property
    def ending(self) -> Ending | None:
        """Return how it ended, None if it did not say, or ended of a timeout that it only reports."""
        if self.timed_out:
            return None
        if self.exception:
            return Ending(kind="crashed", exit_code=self.exit_code or 1, exception=self.exception, site=self.site)
        if self.exit_code is None or self.exit_code == 0:
            return None
        if self.exit_code < 0:
            return Ending(kind="signalled", signal=-self.exit_code)
        return Ending(kind="crashed", exit_code=self.exit_code)


@dataclass(slots=True)
class Logs:
    """Everything that all logs say."""

    ranks: dict[int, RankLines] = field(default_factory=dict)
    shared: list[SharedDevice] = field(default_factory=list)
    world_size: int = 0

    def rank(self, rank: int, path: str) -> RankLines:
        """Return the lines of a rank, made at its first one."""
        return self.ranks.setdefault(rank, RankLines(path=path))


def read(lines: Iterable[str], path: str, rank: int | None, logs: Logs) -> bool:
    """Add what a log says. `rank`: whose log it is, if the path tells. Returns whether it said anything."""
    log = _Log(path, rank, logs)
    for line in lines:
        if any(mark in line for mark in _MARKS):
            log.take(line[:LINE_CHARS_MAX].rstrip())
    return log.found


class _Log:
    """One log while it is read: a traceback and a table of torchrun go over several lines."""

    def __init__(self, path: str, rank: int | None, logs: Logs) -> None:
        self.path = path
        self.own_rank = rank
        self.logs = logs
        self.found = False
        self.sites: dict[int, CallSite | None] = {}  # ranks in a traceback, and its innermost line of the user's
        self.failing: int | None = None  # rank in torchrun's table
        self.failing_host = ""

    def take(self, line: str) -> None:
        """Read one line."""
        prefix = _GLOBAL_RANK.search(line)
        rank = int(prefix.group(1)) if prefix is not None else self.own_rank
        if rank is not None and rank > RANKS_MAX:
            return
        if self._nccl(line):
            return
        if ("Watchdog" in line or "work: " in line) and self._watchdog(line, rank):
            return
        text = line[prefix.end() :].removeprefix(" ") if prefix is not None and prefix.start() == 0 else line
        if rank is not None:
            self._traceback(text, rank)
        self._torchrun(line)

    def _nccl(self, line: str) -> bool:
        duplicate = _DUPLICATE.search(line)
        if duplicate is None and _SHARED not in line:
            nranks = _RANKS_IN_ALL.search(line)
            if nranks is not None:
                self.logs.world_size = max(self.logs.world_size, int(nranks.group(1)))
            return nranks is not None
        host = _NCCL_HOST.search(line)
        ranks = tuple(sorted({int(duplicate.group(1)), int(duplicate.group(2))})) if duplicate is not None else ()
        shared = SharedDevice(
            ranks=ranks,
            device=duplicate.group(3) if duplicate is not None else "",
            host=host.group("host") if host is not None else "",
            path=self.path,
        )
        if len(self.logs.shared) < RANKS_MAX and shared not in self.logs.shared[-64:]:
            self.logs.shared.append(shared)
        self.found = True
        return True

    def _watchdog(self, line: str, rank: int | None) -> bool:
        group, work, status = _GROUP.search(line), _WORK.search(line), _STATUS.search(line)
        if work is None and status is None:
            return False
        if rank is None:
            # Without the prefix of the process only the number in the group is known; in the default group
            # that is the rank.
            bare = group.group("rank") if group is not None else _first_group(_BARE_RANK, line)
            if bare is None or (group is not None and group.group("name") != DEFAULT_NAME):
                return True
            rank = int(bare)
        self.found = True
        mine = self.logs.rank(rank, self.path)
        # The line that tells of the work has no group; the one after it has, and repeats the number.
        lines = mine.groups.setdefault(group.group("name") if group is not None else "", GroupLines())
        lines.desc = (group.group("desc") if group is not None else "") or lines.desc
        if work is not None:
            mine.timed_out = True
            lines.work = _longest(lines.work, _work(work))
        if status is not None:
            lines.enqueued = max(lines.enqueued, int(status.group("enqueued")))
            lines.completed = max(lines.completed, int(status.group("completed")))
            unnamed = mine.groups.get("")
            if unnamed is not None and unnamed.work is not None and status.group("at") == str(unnamed.work.seq):
                lines.work = _longest(lines.work, unnamed.work)
                mine.groups.pop("", None)
        return True

    def _traceback(self, text: str, rank: int) -> None:
        if "Traceback (most recent call last)" in text:
            self.sites[rank] = None
            return
        if rank not in self.sites:
            return
        frame = _FRAME.match(text)
        if frame is not None:
            if is_users_by_path(frame.group("file")):
                self.sites[rank] = CallSite(
                    file=frame.group("file"), line=int(frame.group("line")), function=frame.group("function")
                )
            return
        raised = _RAISED.match(text)
        if raised is not None:
            self.found = True
            mine = self.logs.rank(rank, self.path)
            # "During handling of the above exception": the first one is what happened.
            if not mine.exception:
                mine.exception = f"{raised.group('type').rsplit('.', 1)[-1]}: {raised.group('text')[:200]}"
                mine.site = self.sites[rank]
            del self.sites[rank]

    def _torchrun(self, line: str) -> None:
        host, rank, code = _EXIT_HOST.match(line), _EXIT_RANK.match(line), _EXIT.match(line)
        if host is not None:
            self.failing_host = host.group("host")
        elif rank is not None:
            self.failing = int(rank.group("rank"))
        elif code is not None and self.failing is not None and self.failing <= RANKS_MAX:
            self.found = True
            mine = self.logs.rank(self.failing, self.path)
            mine.exit_code = int(code.group("code"))
            mine.host = mine.host or self.failing_host
            self.failing = None


def _first_group(pattern: re.Pattern[str], line: str) -> str | None:
    found = pattern.search(line)
    return found.group(1) if found is not None else None


def _work(found: re.Match[str]) -> Work:
    return Work(
        seq=int(found.group("seq")),
        op=found.group("op")[:40],
        numel_in=int(found.group("into") or -1),
        numel_out=int(found.group("out") or -1),
        timeout_s=int(found.group("timeout")) / 1000,
        ran_s=int(found.group("ran")) / 1000,
    )


def _longest(one: Work | None, other: Work) -> Work:
    """Return the older of two works of one group: the watchdog may tell of several."""
    return other if one is None or other.seq < one.seq else one
