"""A capture leads to the verdict that was said, and a file that anybody made costs no more than a sentence."""

import contextlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import StackDump, StackFrame
from ncclwatch_server.evidence.inspection import with_members
from ncclwatch_server.incidents import capture_file
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey
from ncclwatch_server.incidents.capture_file import NoCapture, read, written
from ncclwatch_server.incidents.report import report_job
from ncclwatch_server.judge import judge
from ncclwatch_server.offline.answer import lines, notes_of
from ncclwatch_server.offline.gather import gather
from tests.scenarios.texts import FILES, SEPARATOR, situation


def snapshot_of(name: str) -> JobSnapshot:
    (path,) = (path for path in FILES if path.stem == name)
    return situation(path.read_text().partition(SEPARATOR)[0]).snapshot()


def incident_of(snapshot: JobSnapshot) -> Incident:
    verdict = judge(snapshot)[0]
    return Incident(
        id="a1", key=JobKey(name="job", instance="", attempt=0), job="job", world_size=snapshot.world_size,
        state=IncidentState.OPEN, verdict=verdict, onset_to_open_s=2.0, opened_at=1e9,
    )  # fmt: skip


def test_every_scenario_is_the_same_after_it_was_written_and_read() -> None:
    for path in FILES:
        snapshot = situation(path.read_text().partition(SEPARATOR)[0]).snapshot()
        assert read(io.BytesIO(written(snapshot, (), 1e9))).snapshot == snapshot, path


def test_a_capture_holds_the_verdict_and_the_stacks_for_people() -> None:
    snapshot = snapshot_of("mismatch_of_roots")
    frames = (StackFrame(function="wait", file="c10d.py", line=7), StackFrame(function="step", file="a\nb.py", line=9))
    stacks = {2: StackDump(rank=2, threads=(("MainThread", frames),)), 1: StackDump(rank=1, failure="no ptrace")}
    data = written(snapshot, (incident_of(snapshot),), 1e9, stacks, ("rank 0 did not answer",))
    found = read(io.BytesIO(data))
    assert judge(found.snapshot) == judge(snapshot)
    assert found.notes == ("rank 0 did not answer",)
    assert [each.summary for each in found.report.incidents] == [judge(snapshot)[0].summary]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert "rank 2 called broadcast" in archive.read("verdicts.txt").decode()
        lines = archive.read("stacks.txt").decode().splitlines()
    assert lines[0] == "rank 1: no ptrace"
    assert lines[2] == "rank 2, thread MainThread, innermost frame first"
    assert lines[3] == "  wait (c10d.py:7)"
    assert len(lines) == 6  # a line break in a name makes no line


def test_too_many_operations_are_cut_and_those_of_the_culprit_last(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = snapshot_of("mismatch_of_roots")
    operation = snapshot.ranks[0].history[-1]
    long = tuple(replace(operation, seq=seq) for seq in range(1, 401))
    snapshot = replace(snapshot, ranks={r: replace(view, history=long) for r, view in snapshot.ranks.items()})
    whole = len(msgspec.msgpack.encode(snapshot))
    incident = replace(incident_of(snapshot_of("mismatch_of_roots")))
    for bytes_max, kept in ((whole, (400, 400)), (whole * 3 // 4, (100, 400)), (whole // 12, (0, 0))):
        monkeypatch.setattr(capture_file, "SNAPSHOT_BYTES_MAX", bytes_max)
        found = read(io.BytesIO(written(snapshot, (incident,), 1e9)))
        assert tuple(len(found.snapshot.ranks[rank].history) for rank in (0, 2)) == kept
        assert bool(found.notes) == (kept != (400, 400))
        assert found.snapshot.ranks[0].history[-1:] == (long[-1:] if kept[0] else ())
    monkeypatch.setattr(capture_file, "SNAPSHOT_BYTES_MAX", 400)
    found = read(io.BytesIO(written(snapshot, (incident,), 1e9)))
    assert found.snapshot.ranks == {}
    assert found.notes == ("the records of all ranks are too many",)


def changed(name: str, data: bytes | None) -> bytes:
    """Return a capture in which one member holds something else, or is not there."""
    file = io.BytesIO()
    whole = zipfile.ZipFile(io.BytesIO(written(snapshot_of("mismatch_of_roots"), (), 1e9)))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in whole.namelist():
            if each != name:
                archive.writestr(each, whole.read(each))
            elif data is not None:
                archive.writestr(each, data)
    return file.getvalue()


MANIFEST = b'{"schema":2,"version":"9","job":"j","taken_at":1.0,"notes":[]}'

NO_MOMENT = msgspec.json.encode(
    replace(report_job("job", 3, [incident_of(snapshot_of("mismatch_of_roots"))]), world_size=3)
).replace(b'"opened_at":"2001', b'"opened_at":"yesterday')


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: b"PK\x03\x04 and no more", "a damaged zip file"),
        (lambda: written(snapshot_of("mismatch_of_roots"), (), 1e9)[:-40], "a damaged zip file"),
        (lambda: changed("snapshot.msgpack", None), "a zip file that ncclwatch has not made"),
        (lambda: changed("manifest.json", MANIFEST), "a capture of schema 2; this version reads 1"),
        (lambda: changed("snapshot.msgpack", b"\x93\x01\x02\x03"), "cannot read"),
        (lambda: changed("report.json", b"{"), "cannot read"),
        (lambda: changed("manifest.json", MANIFEST.replace(b"2,", b"1,").replace(b"1.0", b"1e300")), "is none"),
        (lambda: changed("report.json", NO_MOMENT), "a damaged zip file"),
        (lambda: changed("snapshot.msgpack", bytes(200 * 1024 * 1024)), "its snapshot.msgpack has more than 48 MB"),
    ],
)
def test_a_file_that_is_no_whole_capture_is_one_sentence(made: Callable[[], bytes], why: str) -> None:
    with pytest.raises(NoCapture, match=why):
        read(io.BytesIO(made()))


def test_a_torn_capture_never_raises_anything_else() -> None:
    data = bytearray(written(snapshot_of("mismatch_of_roots"), (), 1e9))
    for at in range(len(data)):
        torn = bytes(data[:at]) + bytes([data[at] ^ 0xFF]) + bytes(data[at + 1 :])
        with contextlib.suppress(NoCapture):
            read(io.BytesIO(torn))


def test_files_beside_a_capture_are_not_used_and_that_is_said(tmp_path: Path) -> None:
    snapshot = snapshot_of("mismatch_of_roots")
    (tmp_path / "job.zip").write_bytes(written(snapshot, (incident_of(snapshot),), 1e9, notes=("rank 0 is deaf",)))
    (tmp_path / "stacks_rank_3.json").write_text('[{"thread_name": "MainThread", "frames": []}]')
    gathered = gather([tmp_path])
    assert gathered.snapshot() == with_members(snapshot)
    notes = notes_of(gathered.snapshot(), gathered)
    assert notes[-1] == "rank 0 is deaf"
    assert any(note.endswith("to judge the other files (here: 1)") for note in notes)
    (tmp_path / "older.zip").write_bytes(written(snapshot, (), 1e8))
    again = gather([tmp_path])
    assert again.capture is not None
    assert again.capture.taken_at == 1e9
    assert any("another capture is newer" in note or "is left out" in note for note in again.notes)


def test_a_capture_without_a_hang_says_when_nothing_was_wrong(tmp_path: Path) -> None:
    (path := tmp_path / "well.zip").write_bytes(written(snapshot_of("mismatch_of_roots"), (), 1e9))
    gathered = gather([path])
    said = list(lines(gathered.snapshot(), gathered, ()))
    assert said == [
        "ncclwatch: nothing was wrong with job job at 2001-09-09T01:46:40+00:00: its capture shows no hang."
    ]
