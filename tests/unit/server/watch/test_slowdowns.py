"""The life of an incident about a slow rank: opened once, kept true, closed when it is over, apart from hangs."""

from collections.abc import Iterable

import numpy as np

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.slowness import SlowKind
from ncclwatch.contract.model.verdict import Severity
from ncclwatch.contract.wire import Loop
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState, Opening
from ncclwatch_server.incidents.event_stream import Announcements
from ncclwatch_server.incidents.report import report_incident, revive
from ncclwatch_server.incidents.terminal_text import render
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.security.audit import AuditEntry
from ncclwatch_server.state.digest_rows import RANK_DTYPE
from ncclwatch_server.state.job_state import JobState
from ncclwatch_server.watch.counters import Counters
from ncclwatch_server.watch.publisher import Publisher
from ncclwatch_server.watch.slowdowns import Slowdowns
from tests.unit.server.server_values import KEY, VERDICT

GROUPS = memoryview(b"")


class Kept:
    """What a store would keep."""

    lasting = True

    def __init__(self) -> None:
        self.incidents: list[Incident] = []

    def put(self, incident: Incident) -> None:
        self.incidents.append(incident)

    def learn(self, job: str, lesson: object) -> None:
        raise AssertionError("a slow rank teaches nothing of waits")

    def note(self, entry: AuditEntry) -> None:
        """Take a line of the audit log."""


class Scene:
    """One job of four ranks on one node, of which rank 2 may be slow in its loader."""

    def __init__(self, stored: Iterable[Incident] = ()) -> None:
        self.book, self.kept = IncidentBook(stored), Kept()
        self.slowdowns = Slowdowns(
            self.book, Publisher(self.kept, Counters(), Announcements()), lambda: 500.0 + self.now
        )
        self.job = Job(id="j", key=KEY, state=JobState(4), known_since=0.0)
        self.job.state.announce(1, range(4), 0.0)
        self.rows = np.zeros(4, RANK_DTYPE)
        self.rows["rank"] = np.arange(4)
        self.rows["pace_group"], self.rows["initialised"] = 7, 1
        self.now = 0.0

    def run(self, windows: int, *, share: float) -> None:
        for _ in range(windows):
            self.now += 2.0
            self.rows["pace_seq"] += 8
            self.rows["steps"] += 8
            self.rows["pace_ms"] += 2000
            self.rows["pace_waited_ns"][[0, 1, 3]] += int(share * 2e9)
            self.rows["data_ms"][2] += int(share * 2000)
            self.job.state.receive_digest(1, memoryview(self.rows.tobytes()), GROUPS, self.now)
            self.job.state.fold(self.now)
            self.slowdowns.update(self.job, self.now)


def test_a_slow_rank_is_one_incident_that_names_its_loop() -> None:
    scene = Scene()
    scene.job.loops.receive_loops([Loop(2, "/home/user/train.py:31", 1, 9, 99, False, False, function="train")])
    scene.run(30, share=0.5)
    (incident,) = scene.book.all()
    verdict = incident.verdict
    assert (incident.open, verdict.severity, verdict.predicted) == (True, Severity.WARNING, False)
    assert verdict.culprits[0].call_site == CallSite(file="/home/user/train.py", line=31, function="train")
    assert verdict.slowness is not None
    assert (verdict.slowness.kind, len(scene.kept.incidents) < 10) == (SlowKind.DATA_LOADING, True)
    assert "the job continues, and could be faster" in render(incident)


def test_a_server_that_was_started_again_keeps_the_incident_until_it_could_have_found_it_itself() -> None:
    before = Scene()
    before.run(30, share=0.5)
    for share, state in ((0.5, IncidentState.OPEN), (0.0, IncidentState.RESOLVED)):
        scene = Scene(before.book.all())
        scene.run(10, share=share)
        assert [incident.open for incident in scene.book.all()] == [True]
        scene.run(40, share=share)
        assert [incident.state for incident in scene.book.all()] == [state]


def test_it_is_resolved_when_the_rank_is_early_again() -> None:
    scene = Scene()
    scene.run(12, share=0.5)
    scene.run(20, share=0.0)
    (incident,) = scene.book.all()
    assert incident.state is IncidentState.RESOLVED
    scene.run(12, share=0.5)
    assert len(scene.book.slow_of(KEY)) == 1


def test_a_loss_that_grows_is_told_again_as_a_warning() -> None:
    scene = Scene()
    scene.run(12, share=0.12)
    assert [incident.verdict.severity for incident in scene.book.all()] == [Severity.INFO]
    scene.run(12, share=0.6)
    assert [incident.verdict.severity for incident in scene.book.all()] == [Severity.WARNING]


def test_a_hang_that_is_over_resolves_no_slowness_and_the_end_of_the_job_ends_it() -> None:
    scene = Scene()
    scene.run(12, share=0.5)
    hang = scene.book.open(Opening(key=KEY, job="j", world_size=4, verdict=VERDICT), 1.0)
    assert hang is not None
    assert scene.book.miss(KEY, frozenset(), frozenset(), 2.0) == ()
    assert [incident.id for incident in scene.book.close(KEY, IncidentState.RESOLVED, 3.0)] == [hang.id]
    assert len(scene.book.slow_of(KEY)) == 1
    scene.book.close(KEY, IncidentState.ENDED, 4.0)
    assert scene.book.slow_of(KEY) == ()


def test_a_late_rank_is_no_slow_one() -> None:
    """Two different statements, though both are warnings of one cause."""
    scene = Scene()
    scene.run(12, share=0.5)
    (incident,) = scene.book.all()
    late = VERDICT.__class__(
        **{name: getattr(incident.verdict, name) for name in VERDICT.__slots__} | {"slowness": None}
    )
    assert scene.book.match(KEY, late, 1.0) is None
    assert scene.book.insist(KEY, late) == late


def test_what_is_stored_comes_back() -> None:
    scene = Scene()
    scene.run(12, share=0.5)
    (incident,) = scene.book.all()
    assert revive(report_incident(incident), KEY, 4).verdict.slowness == incident.verdict.slowness
