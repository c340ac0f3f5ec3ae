"""Writes and reads a capture: one zip file with what was known of a job at one moment.

`snapshot.msgpack` holds what the judge judged, so that `ncclwatch analyze` comes to the same verdict later and
elsewhere; `report.json` the incidents as the API gives them. The texts are for people. A member is added, never
renamed or given another meaning, while `schema` in `manifest.json` stays 1.
"""

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import BinaryIO

import msgspec

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import StackDump, StackFrame
from ncclwatch.contract.undecodable import UNDECODABLE
from ncclwatch.contract.version import VERSION
from ncclwatch.contract.words.printable import json_bytes, one_line
from ncclwatch_server.incidents import terminal_text
from ncclwatch_server.incidents.book import Incident, JobKey
from ncclwatch_server.incidents.report import JobReport, report_job, revive

MAGIC = b"PK\x03\x04"  # of any zip file
SCHEMA = 1
SNAPSHOT_BYTES_MAX = 48 * 1024 * 1024
TEXT_BYTES_MAX = 4 * 1024 * 1024
REPORT_BYTES_MAX = 16 * 1024 * 1024
HISTORIES = (100, 20, 0)  # newest operations of a rank that is no culprit, where all of them are too many
_MANIFEST, _SNAPSHOT, _REPORT = "manifest.json", "snapshot.msgpack", "report.json"
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)  # what zipfile lets through
_README = """What ncclwatch knew of job {job} at {moment}.

verdicts.txt      the incidents, as on the job's terminal
stacks.txt        the stacks of its ranks, where py-spy could read them
report.json       the incidents for machines, as `GET /api/v1/jobs/{{job}}/report` gives them
snapshot.msgpack  what the verdicts were made from: what each rank recorded, its process, its device
manifest.json     of which version and which moment this is

To read it again:  ncclwatch analyze FILE.zip
It holds paths, host names and lines of source.
"""


class NoCapture(ValueError):
    """A file is no capture that this version can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What was known of a job at one moment."""

    snapshot: JobSnapshot  # what the judge judged
    report: JobReport
    taken_at: float  # seconds since 1970
    version: str = VERSION  # of the server that made it
    notes: tuple[str, ...] = ()  # what is missing, and why


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    version: str
    job: str
    taken_at: float
    notes: tuple[str, ...] = ()


def written(
    snapshot: JobSnapshot,
    incidents: Iterable[Incident],
    taken_at: float,
    stacks: Mapping[int, StackDump] | None = None,
    notes: Iterable[str] = (),
) -> bytes:
    """Return a capture as a file. `stacks`: for people, beside those in the snapshot. At most some 70 MB."""
    known = tuple(incidents)
    culprits = frozenset(culprit.rank for each in known for culprit in each.verdict.culprits)
    data, cut = _encoded(snapshot, culprits)
    manifest = _Manifest(
        schema=SCHEMA, version=VERSION, job=snapshot.job, taken_at=taken_at, notes=(*notes, *((cut,) if cut else ()))
    )
    moment = datetime.fromtimestamp(taken_at, timezone.utc).isoformat(timespec="seconds")
    verdicts = [line for each in known for line in (*terminal_text.lines_of(each), "")]
    dumps = {**snapshot.stacks, **(stacks or {})}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.txt", _README.format(job=one_line(snapshot.job), moment=moment))
        archive.writestr(_MANIFEST, json_bytes(msgspec.json.encode(manifest)))
        archive.writestr("verdicts.txt", _text(verdicts or ["no incident"]))
        archive.writestr("stacks.txt", _text(_stack_lines(dumps)))
        archive.writestr(_REPORT, json_bytes(msgspec.json.encode(_report(snapshot, known))))
        archive.writestr(_SNAPSHOT, data)
    return file.getvalue()


def read(file: BinaryIO) -> Capture:
    """Return a capture from a file that anybody may have made. Raises `NoCapture`."""
    try:
        with zipfile.ZipFile(file) as archive:
            manifest = msgspec.json.decode(_member(archive, _MANIFEST, TEXT_BYTES_MAX), type=_Manifest)
            if manifest.schema != SCHEMA:
                raise NoCapture(f"a capture of schema {manifest.schema}; this version reads {SCHEMA}: update ncclwatch")
            found = Capture(
                snapshot=msgspec.msgpack.decode(_member(archive, _SNAPSHOT, SNAPSHOT_BYTES_MAX), type=JobSnapshot),
                report=msgspec.json.decode(_member(archive, _REPORT, REPORT_BYTES_MAX), type=JobReport),
                taken_at=manifest.taken_at,
                version=manifest.version,
                notes=manifest.notes,
            )
            _check_moments(found)
            return found
    except NoCapture:
        raise
    except KeyError as error:
        raise NoCapture("a zip file that ncclwatch has not made") from error
    except UNDECODABLE as error:
        raise NoCapture(f"a capture that this version cannot read ({error}); update ncclwatch") from error
    except (*_DAMAGED, OSError, EOFError, RuntimeError, ValueError) as error:
        raise NoCapture(f"a damaged zip file ({error})") from error


def _check_moments(capture: Capture) -> None:
    """Raise one of the errors of a damaged file if a moment in a capture is none."""
    try:
        datetime.fromtimestamp(capture.taken_at, timezone.utc)
        for each in capture.report.incidents:
            revive(each, JobKey(name=capture.report.job, instance="", attempt=0), capture.report.world_size)
    except OverflowError as error:
        raise NoCapture(f"a moment in it is none ({error})") from error


def _member(archive: zipfile.ZipFile, name: str, bytes_max: int) -> bytes:
    """Return what a member holds. A small file may unpack to any size, so only so much is read."""
    with archive.open(name) as member:
        data = member.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise NoCapture(f"its {name} has more than {bytes_max >> 20} MB")
    return data


def _encoded(snapshot: JobSnapshot, culprits: frozenset[int]) -> tuple[bytes, str]:
    """Return a snapshot in few enough bytes, and what was left out for it."""
    data = msgspec.msgpack.encode(snapshot)
    if len(data) <= SNAPSHOT_BYTES_MAX:
        return data, ""
    for kept in HISTORIES:
        views = {
            rank: view if rank in culprits and kept else replace(view, history=view.history[-kept:] if kept else ())
            for rank, view in snapshot.ranks.items()
        }
        data = msgspec.msgpack.encode(replace(snapshot, ranks=views))
        if len(data) <= SNAPSHOT_BYTES_MAX:
            return data, f"only the newest {kept} operations of each rank are here: all of them are too many"
    return msgspec.msgpack.encode(replace(snapshot, ranks={}, stacks={})), "the records of all ranks are too many"


def _report(snapshot: JobSnapshot, incidents: tuple[Incident, ...]) -> JobReport:
    report = report_job(snapshot.job, snapshot.world_size, incidents)
    while len(report.incidents) > 1 and len(msgspec.json.encode(report)) > REPORT_BYTES_MAX / 2:  # the oldest go
        report = replace(report, incidents=report.incidents[-(len(report.incidents) // 2) :])
    return report


def _stack_lines(dumps: Mapping[int, StackDump]) -> Iterator[str]:
    for rank, dump in sorted(dumps.items()):
        if dump.failure:
            yield f"rank {rank}: {dump.failure}"
        for name, frames in dump.threads:
            yield f"rank {rank}, thread {name}, innermost frame first"
            yield from _frame_lines(frames)
        if dump.native:
            yield f"rank {rank}, main thread with native frames"
            yield from _frame_lines(dump.native)
        for child in dump.children:
            where = f", {child.in_kernel}" if child.in_kernel else ""
            yield f"rank {rank}, its child process {child.pid}{where}"
            yield from _frame_lines(child.frames)
        yield ""


def _frame_lines(frames: Iterable[StackFrame]) -> Iterator[str]:
    return (f"  {frame.function} ({frame.file}{f':{frame.line}' if frame.line else ''})" for frame in frames)


def _text(lines: Iterable[str]) -> bytes:
    data = "".join(f"{one_line(line)}\n" for line in lines).encode(errors="replace")
    return data if len(data) <= TEXT_BYTES_MAX else data[:TEXT_BYTES_MAX] + b"\n(cut)\n"
