"""`ncclwatch trace` on a real job: live, by its incident, and of the rings that it leaves behind."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from tests.integration.command_line import ncclwatch
from tests.integration.fake_agent import until
from tests.integration.real_jobs import kill_all, torchrun
from tests.integration.server_process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@dataclass(frozen=True)
class Hung:
    """A job of two ranks that hangs, and its server."""

    server: ServerProcess
    rings: Path


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    runtime = tmp_path_factory.mktemp("traced") / "runtime"
    with ServerProcess(tmp_path_factory.mktemp("server"), program="tests.integration.pages_server") as server:
        job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=server.url, NCCLWATCH_JOB="team/traced")
        try:
            until(lambda: any(each["job"] == "team/traced" for each in server.incidents()), timeout_s=90.0)
            yield Hung(server, runtime)
        finally:
            job.kill()
            kill_all(runtime)
            job.communicate(timeout=30)


def read(path: Path) -> tuple[set[str], list[str]]:
    """Return the names of tracks and of slices."""
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    names = {entry.iid: entry.name for packet in trace.packet for entry in packet.interned_data.event_names}
    tracks = {packet.track_descriptor.name for packet in trace.packet if packet.HasField("track_descriptor")}
    events = [packet.track_event for packet in trace.packet if packet.HasField("track_event")]
    return tracks, [names[event.name_iid] for event in events if event.name_iid]


def check(path: Path) -> None:
    """Check that a trace shows the hang of hang.py."""
    tracks, slices = read(path)
    assert any(name.startswith("rank 1 on ") and name.endswith(": culprit") for name in tracks), tracks
    assert "operations" in tracks
    assert "all_reduce #36" in slices
    assert "barrier #36" in slices
    assert any("rank 1" in name and "barrier at hang.py:16" in name for name in slices), slices[:3]


def test_a_live_job_is_traced_by_its_name_and_by_its_incident(hung: Hung, tmp_path: Path):
    (incident,) = [each for each in hung.server.incidents() if each["job"] == "team/traced"]
    for what in ("team/traced", incident["id"]):
        file = tmp_path / "job.pftrace"
        done = ncclwatch("trace", what, "-o", str(file), server=hung.server.url)
        assert done.returncode == 0, done.stderr
        assert f"{file} (" in done.stdout
        assert "ui.perfetto.dev" in done.stdout
        check(file)
        tracks, slices = read(file)
        assert "state" in tracks
        assert {"communicates", "waits for others", "blamed by an open incident"} & set(slices)


def test_the_rings_of_a_job_are_traced_without_a_server(hung: Hung, tmp_path: Path):
    file = tmp_path / "rings.pftrace"
    done = ncclwatch("trace", str(hung.rings), "-o", str(file))
    assert done.returncode == 0, done.stderr
    check(file)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nothing-here",), "knows no job 'nothing-here'"),
        (("team/traced", "-o", "trace.png"), "a trace has the suffix .pftrace"),
        (("one", "two"), "2 jobs were named"),
        (("team/traced", "--rank", "7"), "has no rank 7; name ranks of 0-1"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_what_to_type(hung: Hung, arguments: tuple[str, ...], sentence: str):
    done = ncclwatch("trace", *arguments, server=hung.server.url)
    assert done.returncode == 2
    assert sentence in done.stderr
