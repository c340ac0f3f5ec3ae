"""Reads every file in the given paths as what it is, and tells of it if it is nothing of ours.

One file that cannot be read is a note and never the end of the others.
"""

import contextlib
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from ncclwatch.contract import config
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import StackDump
from ncclwatch.contract.undecodable import UNDECODABLE
from ncclwatch.contract.words.text import rank_list
from ncclwatch_server.evidence.inspection import with_members
from ncclwatch_server.incidents import capture_file
from ncclwatch_server.incidents.capture_file import Capture
from ncclwatch_server.incidents.report import JobReport
from ncclwatch_server.judge.theory.histories.signatures import SYNCHRONISING
from ncclwatch_server.offline import flight_recorder, log_recordings, logs, reports, rings, stacks, unpickle
from ncclwatch_server.offline.entries import Names
from ncclwatch_server.offline.errors import NothingToAnalyze, Unreadable
from ncclwatch_server.offline.logs import Logs
from ncclwatch_server.offline.recording import Recording
from ncclwatch_server.offline.rings import Left
from ncclwatch_server.offline.snapshot import Witness, apart_for_s, snapshot_of

FILES_MAX = 200_000
FILE_BYTES_MAX = 512 << 20
NOTES_MAX = 20
HEAD_BYTES = 4096
AHEAD_BYTES = 1 << 16
CLOCKS_APART_NS = 60 * 10**9  # more than the clocks of the hosts of one job differ by
_RANK = re.compile(r"rank[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_TAIL_NUMBER = re.compile(r"(\d{1,7})$")
_SUFFIXES = re.compile(r"(\.(json|pickle|pkl|bin|dump|txt|log))+$", re.IGNORECASE)
_STREAMS = ("stderr.log", "stdout.log", "stderr", "stdout")  # torchrun: attempt_0/<rank>/stderr.log


@dataclass(slots=True)
class Gathered:
    """What was found, one file after the other."""

    dumps: dict[int, Recording] = field(default_factory=dict)
    rings: dict[int, Left] = field(default_factory=dict)
    stacks: dict[int, StackDump] = field(default_factory=dict)
    reports: list[JobReport] = field(default_factory=list)
    capture: Capture | None = None  # the newest: it holds all that the others would tell
    logs: Logs = field(default_factory=Logs)
    names: Names = field(default_factory=Names)
    notes: list[str] = field(default_factory=list)
    notes_left_out: int = 0
    files: int = 0
    logs_read: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing was found that says anything of a job."""
        said = self.logs.ranks or self.logs.shared or self.logs_read
        return not (self.dumps or self.rings or self.stacks or self.reports or self.capture or said)

    @property
    def beside_the_capture(self) -> int:
        """How many other files tell of a job."""
        return len(self.dumps) + len(self.rings) + len(self.stacks) + len(self.reports) + self.logs_read

    def note(self, text: str) -> None:
        """Remember something the reader should know."""
        if len(self.notes) < NOTES_MAX:
            self.notes.append(text)
        else:
            self.notes_left_out += 1

    def snapshot(self) -> JobSnapshot:
        """Return the job as the files show it: a capture, else of dumps and rings what more ranks have, then logs."""
        if self.capture is not None:
            return with_members(self.capture.snapshot)
        from_rings = rings.views_of(self.rings.values())
        from_logs = log_recordings.recordings_of(self.logs)
        recordings = {**from_logs, **self.dumps}
        if len(from_rings) >= len(self.dumps):
            recordings = {rank: each for rank, each in recordings.items() if rank not in from_rings}
        else:
            recordings = {
                rank: each for rank, each in recordings.items() if rank in self.dumps or rank not in from_rings
            }
        endings = {rank: view.ending for rank, view in from_rings.items() if view.ending is not None}
        endings |= {rank: lines.ending for rank, lines in self.logs.ranks.items() if lines.ending is not None}
        bare = {rank: replace(view, ending=None) for rank, view in from_rings.items()}
        witness = Witness(stacks=self.stacks, endings=endings, rings=bare, shared_devices=tuple(self.logs.shared))
        return snapshot_of(recordings, witness)


def gather(paths: Iterable[Path], gathered: Gathered | None = None) -> Gathered:
    """Read all files in these paths. Raises `NothingToAnalyze` if one of them does not exist.

    Whoever hands in where to gather can see how far it has come.
    """
    gathered = Gathered() if gathered is None else gathered
    with unpickle.bounded_memory():
        for path in _files(paths, gathered):
            gathered.files += 1
            try:
                _read(path, gathered)
            except Unreadable as error:
                gathered.note(f"{path}: {error}")
            except OSError as error:
                gathered.note(f"{path}: cannot be read ({error.strerror})")
            except MemoryError:
                gathered.note(f"{path}: it asks for more memory than such a file can need")
    _keep_one_job(gathered)
    return gathered


def look_deeper(gathered: Gathered, ranks: Iterable[int]) -> None:
    """Read the dumps of a few ranks once more and keep all that they did: how they parted lies further back."""
    for rank in ranks:
        known = gathered.dumps.get(rank)
        if known is None:
            continue
        with contextlib.suppress(Unreadable, OSError, MemoryError), unpickle.bounded_memory():
            with _open(Path(known.path)) as file:
                value = unpickle.load(file) if file.peek(1)[:1] == b"\x80" else _json(file.read())
            gathered.dumps[rank] = flight_recorder.read(
                value, rank, known.path, known.written_ns, gathered.names, tail=config.HISTORY_MAX
            )


def _files(paths: Iterable[Path], gathered: Gathered) -> Iterator[Path]:
    count = 0
    for given in paths:
        if not given.exists():
            raise NothingToAnalyze(f"there is no {given}; name the directory or the files that the job left behind")
        found = sorted(each for each in given.rglob("*") if each.is_file()) if given.is_dir() else [given]
        for path in found:
            count += 1
            if count <= FILES_MAX:
                yield path
    if count > FILES_MAX:
        gathered.note(f"of {count} files only the first {FILES_MAX} were read")


def _open(path: Path) -> io.BufferedReader:
    """Open a file to be read as a stream: no copy of it is made."""
    return io.BufferedReader(io.FileIO(path), AHEAD_BYTES)


def _read(path: Path, gathered: Gathered) -> None:
    with _open(path) as file:
        status = os.fstat(file.fileno())
        head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
        if not head:
            raise Unreadable("it is empty; the rank may have died while it wrote it")
        if status.st_size > FILE_BYTES_MAX:
            raise Unreadable(f"it has {status.st_size >> 20} MB; at most {FILE_BYTES_MAX >> 20} MB are read")
        if head.startswith(capture_file.MAGIC):
            _keep_capture(file, path, gathered)
        elif head.startswith(rings.MAGIC):
            left = rings.read(str(path))
            _keep_ring(left, gathered)
        elif head[:1] == b"\x80":
            _take(unpickle.load(file), path, status.st_mtime_ns, gathered)
        elif head.lstrip()[:1] in (b"{", b"[") and _is_json(value := _json(file.read())):
            _take(value, path, status.st_mtime_ns, gathered)
        elif b"\0" in head:
            raise Unreadable("it is neither a dump, a ring, a report, stacks nor a log")
        else:
            _read_log(path, gathered)


def _keep_capture(file: BinaryIO, path: Path, gathered: Gathered) -> None:
    """Keep a capture; of two, the one that was taken later."""
    try:
        found = capture_file.read(file)
    except capture_file.NoCapture as error:
        raise Unreadable(str(error)) from error
    known = gathered.capture
    if known is not None and known.taken_at >= found.taken_at:
        gathered.note(f"{path}: left out, another capture is newer")
        return
    if known is not None:
        gathered.note(f"a capture of job {known.snapshot.job} is left out, {path} is newer")
    gathered.capture = found


_NO_JSON = object()


def _is_json(value: object) -> bool:
    return value is not _NO_JSON


def _json(data: bytes) -> object:
    """Return the value of a JSON text. A log may begin with a bracket too: "[rank0]:..."."""
    try:
        return msgspec.json.decode(data)
    except UNDECODABLE as error:
        if data.lstrip()[:1] == b"{" or data.lstrip()[:2] in (b"[{", b"[\n"):
            raise Unreadable(f"it is no whole JSON ({error})") from error
        return _NO_JSON


def _take(value: object, path: Path, written_ns: int, gathered: Gathered) -> None:
    if flight_recorder.is_dump(value):
        _keep_dump(flight_recorder.read(value, rank_of(path), str(path), written_ns, gathered.names), gathered)
    elif stacks.is_stacks(value):
        rank = rank_of(path)
        gathered.stacks[rank] = stacks.read(value, rank)
    elif reports.is_report(value):
        gathered.reports.append(reports.read(value))
    else:
        raise Unreadable("it is neither a dump, a report nor stacks")


def _keep_dump(recording: Recording, gathered: Gathered) -> None:
    """Keep a dump; of two of one rank, the one that goes further."""
    if recording.world and recording.rank not in recording.world:
        raise Unreadable(f"rank {recording.rank}, as its name says, is none of the {len(recording.world)} it tells of")
    # A process has the groups that it is in. Under another number, as that on its host, it speaks for another rank.
    for name, members in recording.members.items():
        if recording.rank not in members:
            told = f"is not in group {name} of ranks {rank_list(members)}, which it has"
            raise Unreadable(f"rank {recording.rank}, as its name says, {told}: rename it to the rank that wrote it")
    known = gathered.dumps.get(recording.rank)
    if known is None:
        gathered.dumps[recording.rank] = recording
        return
    kept, left = (recording, known) if recording.newest_ns > known.newest_ns else (known, recording)
    gathered.dumps[recording.rank] = kept
    if kept.newest_ns != left.newest_ns:
        gathered.note(f"{left.path}: left out, {kept.path} is a newer record of rank {recording.rank}")


def _keep_one_job(gathered: Gathered) -> None:
    """Leave out dumps of a job of other ranks than most have: of an attempt before, or from elsewhere.

    All ranks of a job are in its default group. To hold two of these against each other makes circles that never were.
    """
    sizes = Counter(recording.world for recording in gathered.dumps.values() if recording.world)
    newest = {each.world: each.newest_ns for each in sorted(gathered.dumps.values(), key=lambda each: each.newest_ns)}
    usual = max(sizes, key=lambda world: (sizes[world], newest[world]), default=())
    for rank, recording in tuple(gathered.dumps.items()):
        if recording.world not in ((), usual):
            del gathered.dumps[rank]
            told = f"of a job of {len(recording.world)} ranks, and most files are of one of {len(usual)}"
            gathered.note(f"{recording.path}: left out, it is {told}")
    _keep_one_time(gathered)
    _keep_rings_of_one_job(gathered)


def _keep_one_time(gathered: Gathered) -> None:
    """Leave out dumps whose newest operation is hours from that of most: no rank of one job waits for so long.

    And those that were over when others began what they had been through with: of an attempt before, whose files stay
    where the next one writes none.

    A host whose clock is wrong by hours is left out as well: then its ranks are unknown, and nobody blames them.
    """
    stamped = sorted((each for each in gathered.dumps.values() if each.newest_ns), key=lambda each: each.newest_ns)
    apart_s = max((apart_for_s(each.timeout_s) for each in stamped), default=0.0)
    times: list[list[Recording]] = []
    for each in stamped:
        near = times and (each.newest_ns - times[-1][-1].newest_ns) / 1e9 <= apart_s
        if near and not _is_of_an_earlier_attempt(times[-1][-1], each):
            times[-1].append(each)
        else:
            times.append([each])
    usual = max(times, key=lambda found: (len(found), found[-1].newest_ns), default=[])
    for each in stamped:
        if each not in usual:
            del gathered.dumps[each.rank]
            hours = abs(each.newest_ns - usual[-1].newest_ns) / 3600e9
            told = (
                f"its newest operation is {hours:.1f} hours from that of most files, so it is of another job or attempt"
            )
            gathered.note(f"{each.path}: left out, {told}")


def _is_of_an_earlier_attempt(one: Recording, other: Recording) -> bool:
    """Say whether a rank had ended a collective that no member ends without all, before another one began it."""
    over_ns = one.newest_ns + CLOCKS_APART_NS
    for key, group in one.groups.items():
        theirs = other.groups.get(key)
        if theirs is None or not (group.aligned and theirs.aligned):
            continue
        done = max((op.seq for op in group.tail if op.done and op.signature.op in SYNCHRONISING), default=0)
        if any(op.seq <= done and op.created_ns > over_ns for op in theirs.tail):
            return True
    return False


def _keep_rings_of_one_job(gathered: Gathered) -> None:
    """Leave out rings of other jobs than most rings are of, by the names that they have."""
    jobs = Counter(left.job for left in gathered.rings.values() if left.job)
    newest = {left.job: left.pulse_ns for left in sorted(gathered.rings.values(), key=lambda each: each.pulse_ns)}
    usual = max(jobs, key=lambda job: (jobs[job], newest[job]), default="")
    for rank, left in tuple(gathered.rings.items()):
        if left.job not in ("", usual):
            del gathered.rings[rank]
            gathered.note(f"{left.path}: left out, it is of job {left.job}, and most rings are of job {usual}")


def _keep_ring(left: Left, gathered: Gathered) -> None:
    """Keep a ring; of two of one rank, the one of the newer attempt or of the later pulse."""
    known = gathered.rings.get(left.view.rank)
    if known is None:
        gathered.rings[left.view.rank] = left
        return
    newer = (left.view.attempt, left.pulse_ns) > (known.view.attempt, known.pulse_ns)
    kept, other = (left, known) if newer else (known, left)
    gathered.rings[left.view.rank] = kept
    gathered.note(f"{other.path}: left out, {kept.path} is a newer ring of rank {left.view.rank}")


def _read_log(path: Path, gathered: Gathered) -> None:
    rank = int(path.parent.name) if path.name in _STREAMS and path.parent.name.isdecimal() else None
    if rank is None:
        named = _RANK.search(_SUFFIXES.sub("", path.name))
        rank = int(named.group(1)) if named is not None else None
    with path.open(encoding="utf-8", errors="replace") as lines:
        if logs.read(lines, str(path), rank, gathered.logs):
            gathered.logs_read += 1
        else:
            gathered.note(f"{path}: a text in which neither NCCL nor a rank says anything of a hang")


def rank_of(path: Path) -> int:
    """Return the rank in a file's name: "nccl_trace_rank_3", "host7_rank12.json", "trace_5"."""
    stem = _SUFFIXES.sub("", path.name)
    found = _RANK.findall(stem)
    if found:
        return int(found[-1])
    tail = _TAIL_NUMBER.search(stem)
    if tail is None:
        raise Unreadable("its name does not tell the rank; rename it to something that ends in rank_<number>")
    return int(tail.group(1))
