"""What lies in the given paths? Every file is read as what it is, and told of if it is nothing of ours.

One file that cannot be read is a note and never the end of the others.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ncclwatch_server.postmortem import flight_recorder, unpickle
from ncclwatch_server.postmortem.entries import Names
from ncclwatch_server.postmortem.errors import NothingToAnalyze, Unreadable
from ncclwatch_server.postmortem.recording import Recording

FILES_MAX = 200_000
FILE_BYTES_MAX = 512 << 20
NOTES_MAX = 20
_RANK = re.compile(r"rank[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_TAIL_NUMBER = re.compile(r"(\d{1,7})$")
_SUFFIXES = re.compile(r"(\.(json|pickle|pkl|bin|dump|txt|log))+$", re.IGNORECASE)


@dataclass(slots=True)
class Gathered:
    """What was found, one file after the other."""

    recordings: dict[int, Recording] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    notes_left_out: int = 0
    files: int = 0

    def note(self, text: str) -> None:
        """Remember something the reader should know."""
        if len(self.notes) < NOTES_MAX:
            self.notes.append(text)
        else:
            self.notes_left_out += 1

    def add(self, recording: Recording) -> None:
        """Keep a recording; of two of one rank, the one that goes further."""
        known = self.recordings.get(recording.rank)
        if known is None:
            self.recordings[recording.rank] = recording
            return
        kept, left = (recording, known) if recording.newest_ns > known.newest_ns else (known, recording)
        self.recordings[recording.rank] = kept
        if kept.newest_ns != left.newest_ns:
            self.note(f"{left.path}: left out, {kept.path} is a newer record of rank {recording.rank}")


def gather(paths: Iterable[Path]) -> Gathered:
    """Read all files in these paths. Raises `NothingToAnalyze` if a path does not exist or holds nothing at all."""
    gathered, names = Gathered(), Names()
    with unpickle.bounded_memory():
        for path in _files(paths):
            gathered.files += 1
            try:
                _read(path, gathered, names)
            except Unreadable as error:
                gathered.note(f"{path}: {error}")
            except OSError as error:
                gathered.note(f"{path}: cannot be read ({error.strerror})")
            except MemoryError:
                gathered.note(f"{path}: it asks for more memory than a dump can need")
    return gathered


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    count = 0
    for given in paths:
        if not given.exists():
            raise NothingToAnalyze(f"there is no {given}; name the directory or the files that the job left behind")
        found = sorted(each for each in given.rglob("*") if each.is_file()) if given.is_dir() else [given]
        for path in found:
            count += 1
            if count <= FILES_MAX and not path.name.startswith("."):
                yield path


def _read(path: Path, gathered: Gathered, names: Names) -> None:
    status = path.stat()
    if status.st_size > FILE_BYTES_MAX:
        raise Unreadable(f"it has {status.st_size >> 20} MB; at most {FILE_BYTES_MAX >> 20} MB are read")
    data = path.read_bytes()
    if not data:
        raise Unreadable("it is empty; the rank may have died while it wrote it")
    value = _value(data)
    if flight_recorder.is_dump(value):
        gathered.add(flight_recorder.read(value, _rank_of(path), str(path), status.st_mtime_ns, names))
    else:
        raise Unreadable("it is nothing that analyze knows")


def _value(data: bytes) -> object:
    if data[:1] == b"\x80":
        return unpickle.load(data)
    if data[:64].lstrip()[:1] in (b"{", b"["):
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Unreadable(f"it is no whole JSON ({error})") from error
    raise Unreadable("it is neither a pickle nor JSON")


def _rank_of(path: Path) -> int:
    """Return the rank in a file's name: "nccl_trace_rank_3", "host7_rank12.json", "trace_5"."""
    stem = _SUFFIXES.sub("", path.name)
    found = _RANK.findall(stem)
    if found:
        return int(found[-1])
    tail = _TAIL_NUMBER.search(stem)
    if tail is None:
        raise Unreadable("its name does not tell the rank; rename it to something that ends in rank_<number>")
    return int(tail.group(1))
