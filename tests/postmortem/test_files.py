"""Which files are read, what a hostile or a broken one does, and how several kinds go together."""

import io
import json
import pickle
import struct
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

from ncclwatch.cli import contributed
from ncclwatch.cli.main import main
from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.offline import unpickle
from ncclwatch_server.offline.command import analyze
from ncclwatch_server.offline.errors import Unreadable
from tests.postmortem.analysis import brief, said, told
from tests.postmortem.dumps import OPEN, Job
from tests.postmortem.test_logs import SIGNAL


class Bomb:
    """Something that runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("boom",))


def hung(world: int = 4, missing: int = 3) -> Job:
    """Return a job in which one rank does not come."""
    job = Job(world)
    job.steps(20)
    job.op([rank for rank in range(world) if rank != missing], state=OPEN, site="train.py:60")
    return job


HOSTILE = [
    (pickle.dumps(Bomb()), "builtins.print"),
    (b"\x80\x02cos\nsystem\n.", "os.system"),
    (b"\x80\x02X\x01\x00\x00\x00aQ.", "persistent"),
    (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.", "no whole pickle|more memory"),
    (b"\x80\x02r" + struct.pack("<I", 0xFFFFFFF0) + b".", "no whole pickle|more memory"),
    (b"\x80\x02]q\x00(" + b"(" * 100, "no whole pickle"),
    (b"\x80\x05\x95" + struct.pack("<Q", 1 << 62), "no whole pickle|more memory"),
    (pickle.dumps({"a": 1}, protocol=2)[:-3], "no whole pickle"),
    (b"\x80\x02}b.", "no whole pickle"),
]


@pytest.mark.parametrize(("data", "why"), HOSTILE)
def test_a_hostile_pickle_is_refused(data: bytes, why: str, capsys: pytest.CaptureFixture[str]):
    with unpickle.bounded_memory(), pytest.raises(Unreadable, match=why):
        unpickle.load(io.BufferedReader(io.BytesIO(data)))
    assert "boom" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "value",
    [
        {"entries": [1], "version": "2.9"},
        {"entries": [{}], "version": "2.9"},
        {"entries": {}, "version": "2.9"},
        {"entries": [{"process_group": "x", "pg_id": 0, "profiling_name": 3}], "version": "2.9"},
        {"entries": [{"process_group": [[], []], "pg_id": 0}], "version": "2.9", "pg_config": {"0": {"ranks": "[[[["}}},
    ],
)
def test_a_dump_of_another_form_is_a_note(tmp_path: Path, value: object):
    folder = hung().write(tmp_path)
    (folder / "rank_9").write_bytes(pickle.dumps(value, protocol=2))
    answer = said(folder)
    assert [c["rank"] for c in answer["incidents"][0]["culprits"]] == [3]
    assert any("rank_9" in note for note in answer["notes"])


def test_one_unreadable_file_among_many_is_a_note(tmp_path: Path):
    folder = hung().write(tmp_path)
    (folder / "rank_8").write_bytes(b"")
    (folder / "rank_7").write_bytes(pickle.dumps(Bomb()))
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "config.json").write_text('{"lr": 1}')
    (folder / "broken_rank_5.json").write_text('{"version": "2.9", "entries": [')
    answer = said(folder)
    assert [each[3] for each in brief(folder)] == [[3]]
    assert len(answer["notes"]) == 5
    assert "was not run" in " ".join(answer["notes"])


def test_names_that_are_no_utf_8_are_told_in_json_as_well(tmp_path: Path):
    """Of a file, and of a line in a pickle, which may hold half of a character."""
    job = Job(3)
    job.steps(5)
    job.op([0, 1], site="tr\ud800in.py:44", state=OPEN)
    (job.write(tmp_path) / "\udcff_rank_9").write_bytes(b"\x80\x02cut")
    answer = said(tmp_path)
    assert [culprit["rank"] for culprit in answer["incidents"][0]["culprits"]] == [2]
    assert any("\\udcff_rank_9: it is no whole pickle" in note for note in answer["notes"])


def test_json_of_several_versions(tmp_path: Path):
    job = hung()
    for version in ("2.4", "2.5", "2.9"):
        job.version = version
        folder = tmp_path / version
        folder.mkdir()
        assert [each[3] for each in brief(job.write_json(folder, range(4)))] == [[3]]


def test_an_old_dump_without_newer_fields(tmp_path: Path):
    job = Job(2, version="2.1")
    job.p2p(0, "send", 1)
    job.p2p(1, "recv", 0)
    job.batch(0, [("send", 1)])
    job.batch(1, [("recv", 0)])
    job.p2p(1, "recv", 0, state=OPEN)
    for rank in range(2):
        value = job.dump(rank)
        del value["pg_status"], value["comm_lib_version"]
        for entry in value["entries"]:
            for name in (
                "is_p2p",
                "thread_id",
                "thread_name",
                "timeout_ms",
                "retired",
                "input_dtypes",
                "output_dtypes",
            ):
                del entry[name]
        job.write_one(tmp_path, rank, value)
    assert [each[3:] for each in brief(tmp_path)] == [([0], [1])]


def test_pickles_and_json_of_one_job_go_together(tmp_path: Path):
    job = hung()
    job.write(tmp_path, missing=[1, 3])
    job.write_json(tmp_path, [1, 3])
    assert [each[3:] for each in brief(tmp_path)] == [([3], [0, 1, 2])]


def test_the_directories_of_torchtitan(tmp_path: Path):
    folder = tmp_path / "outputs" / "comm_traces" / "iteration_300"
    folder.mkdir(parents=True)
    hung().write(folder, prefix="rank_")
    assert [each[3] for each in brief(tmp_path)] == [[3]]


def test_of_two_dumps_of_one_rank_the_newer_one_counts(tmp_path: Path):
    old, new = tmp_path / "a", tmp_path / "b"
    old.mkdir()
    new.mkdir()
    job = Job(4)
    job.steps(10)
    job.write(old)
    job.steps(10)
    job.op([0, 1, 2], state=OPEN)
    job.write(new)
    assert [each[3] for each in brief(tmp_path)] == [[3]]


def stacks(frames: list[tuple[str, str, int]]) -> str:
    """Return what py-spy prints of a process with one thread."""
    thread = {
        "pid": 5, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 5, "active": True, "owns_gil": False,
        "frames": [{"name": name, "filename": file, "line": line, "locals": None} for name, file, line in frames],
    }  # fmt: skip
    return json.dumps([thread])


def test_a_stack_tells_what_the_absent_rank_did(tmp_path: Path):
    folder = hung().write(tmp_path)
    (folder / "pyspy_rank_3.json").write_text(
        stacks(
            [
                ("read", "/home/user/nfs.py", 5),
                ("_try_get_data", "/opt/site-packages/torch/utils/data/dataloader.py", 1100),
                ("main", "/home/user/train.py", 70),
            ]
        )
    )
    incident = said(folder)["incidents"][0]
    assert (incident["cause"], incident["culprits"][0]["call_site"]["line"]) == (Cause.DATA_STALL.value, 5)
    assert incident["stacks"][0]["ranks"] == [3]


def test_stacks_alone_say_nothing_of_who_waits_for_whom(tmp_path: Path):
    (tmp_path / "rank_0.json").write_text(stacks([("main", "/home/user/train.py", 70)]))
    assert "nothing that tells who waits for whom" in told(tmp_path)


def test_a_log_and_dumps_go_together(tmp_path: Path):
    folder = hung().write(tmp_path, missing=[3])
    (folder / "job.log").write_text(
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/home/user/train.py", line 99, in validate\n'
        "[rank3]: KeyError: 'loss'\n"
    )
    assert [each[2:] for each in brief(folder)] == [("rank_crashed", [3], [0, 1, 2])]
    assert "train.py:99" in told(folder)


def test_a_log_speaks_at_the_end_so_who_had_not_come_by_then_never_came(tmp_path: Path):
    folder = hung().write(tmp_path, age_s=60.0)
    assert [each[:4] for each in brief(folder)] == [("warning", "LATE", "undetermined", [3])]
    (folder / "nccl_trace_rank_3").unlink()
    (folder / "job.log").write_text(SIGNAL.format(rank=3, line=1987, seq=20))
    assert [each[:4] for each in brief(folder)] == [("critical", "STALLED", "undetermined", [3])]


def test_a_saved_report_is_told_again(tmp_path: Path):
    made = said(hung().write(tmp_path))
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "hang.json").write_text(json.dumps(made))
    again = said(saved)
    assert [i["summary"] for i in again["incidents"]] == [i["summary"] for i in made["incidents"]]
    (saved / "other.json").write_text('{"schema": 9, "incidents": []}')
    assert any("update ncclwatch" in note for note in said(saved)["notes"])


def test_what_cannot_be_used_ends_with_2_and_says_what_to_name(tmp_path: Path):
    for path in (tmp_path, tmp_path / "nowhere"):
        result = CliRunner().invoke(analyze, [str(path)])
        assert result.exit_code == 2
        assert "ncclwatch:" in result.stderr
    assert "Flight Recorder dumps" in CliRunner().invoke(analyze, [str(tmp_path)]).stderr


def test_the_command_line_finds_the_command_by_its_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    found = EntryPoint(
        name="analyze", value="ncclwatch_server.offline.command:analyze", group=contributed.GROUP
    )  # fmt: skip
    monkeypatch.setattr(contributed, "entry_points", lambda group: [found])
    result = CliRunner().invoke(main, ["analyze", "--text", str(hung().write(tmp_path))])
    assert (result.exit_code, "rank 3" in result.stdout) == (0, True)


def test_where_no_terminal_is_a_program_reads_the_answer(tmp_path: Path):
    path = str(hung().write(tmp_path))
    result = CliRunner().invoke(analyze, [path])
    assert result.exit_code == 0
    assert [i["id"] for i in json.loads(result.stdout)["incidents"]] == [i["id"] for i in said(Path(path))["incidents"]]


def test_without_the_servers_packages_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    found = EntryPoint(name="analyze", value="ncclwatch_nowhere.command:analyze", group=contributed.GROUP)
    monkeypatch.setattr(contributed, "entry_points", lambda group: [found])
    result = CliRunner().invoke(main, ["analyze", "some", "--json"])
    assert result.exit_code == 2
    assert "pip install 'ncclwatch[server]'" in result.stderr
    assert sys.executable in result.stderr
