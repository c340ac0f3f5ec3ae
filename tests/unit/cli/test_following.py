"""What `ncclwatch run` tells and reports is of its own command, however much else a server has seen."""

import errno
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ncclwatch.cli.client.answers import Incident, Job
from ncclwatch.cli.client.http import NotDone, ServerUnreachable
from ncclwatch.cli.running import following
from ncclwatch.cli.running.following import Attempts, Following, Wanted
from ncclwatch.cli.running.hooks import CommandHooks
from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Culprit
from ncclwatch.contract.on_hang import decision
from ncclwatch.contract.on_hang.decision import Hang
from ncclwatch.contract.on_hang.policy import Action, Policy, in_force

ABORT, RESTART, CAPTURE = (in_force(way, environ={}) for way in ("abort", "restart", "capture"))


class Server:
    """A server with incidents of many jobs, each opened so many seconds ago."""

    def __init__(self) -> None:
        self.opened: dict[str, tuple[str, float]] = {}  # job and moment, by id
        self.state, self.cause, self.one_of, self.predicted = "running", "host_stall", False, ""
        self.standing = "open"  # of its incidents
        self.causes: dict[str, str] = {}  # by id, where it is another one
        self.refused = ""  # why it makes no capture
        self.answered: list[int] = []
        self.culprits: tuple[Culprit, ...] = ()
        self.fates: dict[str, dict[str, object]] = {}

    def open(self, incident: str, job: str, ago_s: float = 0.0) -> None:
        self.opened[incident] = job, time.monotonic() - ago_s

    def check(self) -> None:
        pass

    def jobs(self) -> tuple[Job, ...]:
        return (Job(id="mine", state=self.state, world_size=2),)

    def incidents(self, within_s: float) -> tuple[Incident, ...]:
        lately = time.monotonic() - within_s
        found = tuple(
            Incident(
                id=i, job=job, state=self.standing, cause=self.causes.get(i, self.cause), certainty="PROVEN",
                culprits=self.culprits,
                severity="warning" if i == self.predicted else "critical", summary=i, one_of=self.one_of,
                predicted=i == self.predicted,
            )
            for i, (job, at) in self.opened.items() if at >= lately
        )  # fmt: skip
        self.answered.append(len(found))
        return found

    url = "http://127.0.0.1:1"

    def incident_text(self, incident: str) -> str:
        return f"all of {incident}"

    def incident_brief(self, incident: str, width: int) -> str:
        assert 60 <= width <= 160
        return incident

    def capture(self, job: str, within_s: float) -> bytes:
        assert within_s < 10
        if self.refused:
            raise NotDone(self.refused)
        return f"all of {job}".encode()

    def report(self, job: str) -> bytes:
        mine = [
            {"id": i, "cause": self.cause, "state": self.state, **self.fates.get(i, {})}
            for i, (of, _) in self.opened.items() if of == job
        ]  # fmt: skip
        return msgspec.json.encode({"schema": 1, "job": job, "world_size": 2, "incidents": mine})


def test_only_what_opened_since_the_command_is_asked_for_told_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    server, told = Server(), []
    for number in range(600):
        server.open(f"old {number}", "other", 3600.0)
    server.open("of yesterday", "mine", 86_400.0)
    server.open("of the command before", "mine", 20.0)
    followed = Following(server, "mine", told.append)  # type: ignore[arg-type]
    followed.begin()
    server.open("now", "mine")
    server.open("of another", "other")
    server.open("of its twin", "mine~2")
    followed.start()
    assert followed.certain.wait(10)
    server.state = "ended"
    report = msgspec.json.decode(followed.finish())
    assert sorted(told) == ["now", "of its twin"]
    assert [each["id"] for each in report["incidents"]] == ["now"]
    assert max(server.answered) <= 4


class Silent(Server):
    """A server of this run that is too busy to answer until it is told to."""

    def __init__(self, *, alive: bool = True) -> None:
        super().__init__()
        self.alive = alive
        self.ready = True
        self.answers = threading.Event()
        self.asked = threading.Semaphore(0)

    def jobs(self) -> tuple[Job, ...]:
        self.asked.release()
        if not self.answers.is_set():
            raise ServerUnreachable("no ncclwatch server answers")
        return super().jobs()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_S", "RETRY_S", "SILENT_S"):
        monkeypatch.setattr(following, name, 0.01)


def followed_of(server: Silent, told: list[str]) -> Following:
    followed = Following(server, "mine", told.append, server)  # type: ignore[arg-type]
    followed.begin()
    followed.start()
    for _ in range(20):
        assert server.asked.acquire(timeout=10)
    return followed


@pytest.mark.usefixtures("at_once")
def test_a_server_that_lives_is_asked_again_and_what_it_says_late_is_told_and_reported() -> None:
    server, told = Silent(), []
    followed = followed_of(server, told)
    server.open("now", "mine")
    server.answers.set()
    assert followed.certain.wait(10)
    server.state = "ended"
    report = msgspec.json.decode(followed.finish())
    assert [re.split("[:\n]", line)[0] for line in told] == ["ncclwatch", "ncclwatch", "now"]
    assert "lives and has not answered" in told[0]
    assert "unwatched" not in told[0]
    assert "is watched" in told[1]
    assert [each["id"] for each in report["incidents"]] == ["now"]


@pytest.mark.usefixtures("at_once")
def test_a_server_that_has_ended_is_told_as_that_once() -> None:
    server, told = Silent(alive=False), []
    followed_of(server, told).finish()
    assert told == ["ncclwatch: the server of this run has ended. The training runs on, unwatched.\n"]


def test_a_server_that_is_slow_for_a_moment_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY_S", 0.01)
    server, told = Silent(), []
    followed = followed_of(server, told)
    server.answers.set()
    server.state = "ended"
    followed.finish()
    assert told == []


@pytest.mark.usefixtures("at_once")
def test_what_an_aborted_job_does_while_it_dies_does_not_change_what_was_said_of_its_hang() -> None:
    server, told = Silent(), []
    server.answers.set()
    server.open("hang", "mine")
    followed = Following(server, "mine", told.append, server, policy=ABORT)  # type: ignore[arg-type]
    followed.begin()
    followed.start()
    assert followed.certain.wait(10)
    for _ in range(3):  # the report of that moment is in
        assert server.asked.acquire(timeout=10)
    server.cause = "rank_conditional_collective"
    server.open("goodbye", "mine")
    server.state = "ended"
    report = msgspec.json.decode(followed.finish())
    assert [each.split("\n")[0] for each in told] == ["hang"]
    assert report["incidents"] == [{"id": "hang", "cause": "host_stall", "state": "ended"}]


@pytest.mark.usefixtures("at_once")
def test_a_job_is_not_aborted_while_ranks_may_yet_tell_which_of_several_is_the_culprit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decision, "DECIDED_S", 3600.0)
    server, told = Silent(), []
    server.answers.set()
    server.one_of = True
    server.open("hang", "mine")
    followed = Following(server, "mine", told.append, server, policy=ABORT)  # type: ignore[arg-type]
    followed.begin()
    followed.start()
    for _ in range(3):
        assert server.asked.acquire(timeout=10)
    undecided = followed.certain.is_set()
    server.one_of = False
    assert followed.certain.wait(10)
    server.state = "ended"
    followed.finish()
    assert not undecided


def followed_to_its_end(server: Server, *incidents: str, own: Silent | None = None, verbose: bool = False) -> list[str]:
    """Return what was told of a job with these incidents, until it ended."""
    told: list[str] = []
    followed = Following(server, "mine", told.append, own, verbose=verbose)  # type: ignore[arg-type]
    followed.begin()
    for incident in incidents:
        server.open(incident, "mine")
    followed.start()
    assert followed.certain.wait(10)
    server.state = "ended"
    followed.finish()
    assert followed.told == len(told)
    return told


def test_of_a_server_that_ends_with_the_command_the_page_is_named() -> None:
    server = Silent()
    server.answers.set()
    page = "http://127.0.0.1:1/incidents/now (while the command runs)"
    assert followed_to_its_end(server, "now", own=server) == [f"now\n  page      {page}\n"]


def test_what_was_predicted_is_not_told_after_it_has_happened() -> None:
    server = Server()
    server.predicted = "soon"
    assert followed_to_its_end(server, "soon", "now") == ["now"]


def test_verbose_tells_all() -> None:
    assert followed_to_its_end(Server(), "now", verbose=True) == ["all of now"]


@pytest.mark.usefixtures("at_once")
def test_an_attempt_after_a_hang_is_judged_by_that_hang_and_its_own_incidents_alone() -> None:
    server, told = Silent(), []
    server.answers.set()
    site = CallSite(file="/home/user/train.py", line=44, function="step")
    server.culprits = (Culprit(rank=3, host="a", pid=7, device="", call_site=site, doing=""),)
    reports, before = [], Attempts()
    for attempt in ("first", "second"):
        followed = Following(server, "mine", told.append, server, policy=RESTART, before=before)  # type: ignore[arg-type]
        followed.begin()
        followed.start()
        if attempt == "second":
            for _ in range(3):  # the incident of the first attempt stands still, and is none of this one
                assert server.asked.acquire(timeout=10)
            assert followed.wanted is None
            server.fates["first"] = {"recovered_after_s": 41.0, "came_back_as": "second"}
        server.open(attempt, "mine")
        assert followed.certain.wait(10)
        assert followed.wanted is not None
        reports.append(
            (
                followed.wanted.decision.action,
                [each["id"] for each in msgspec.json.decode(followed.finish())["incidents"]],
            )
        )
        before = followed.and_before(followed.wanted.hang)
        last = msgspec.json.decode(followed.finish())["incidents"][-1]
    assert (last["id"], last["recovered_after_s"], last["came_back_as"]) == ("first", 41.0, "second")
    assert reports == [(Action.RESTART, ["first"]), (Action.ABORT, ["second", "first"])]
    same = Hang(
        cause="host_stall", certainty="PROVEN", ranks=frozenset({3}), places=frozenset({"/home/user/train.py:44"})
    )
    assert before.hangs == (same, replace(same, attempt=1))


def captured(
    monkeypatch: pytest.MonkeyPatch, way: Policy | None, refused: str, full: bool
) -> tuple[Wanted | None, str]:
    """Follow a job that hangs twice; returns what is wanted then, and what was told."""
    monkeypatch.setattr(following, "POLL_S", 0.01)
    monkeypatch.setattr(decision, "STACKS_S", 0.0)
    server, told, kept = Server(), [], []

    def keep(job: str, data: bytes) -> Path:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        kept.append((job, data))
        return Path(f"/captures/{len(kept)}.zip")

    server.refused = refused
    server.open("one", "mine")
    server.open("two", "mine~2")
    followed = Following(server, "mine", told.append, policy=way, keep_capture=keep)  # type: ignore[arg-type]
    followed._earlier = frozenset()
    followed.start()
    assert followed.certain.wait(10)
    seen = len(server.answered)
    while len(server.answered) < seen + 3:
        time.sleep(0.01)
    server.state = "ended"
    followed.finish()
    assert kept[:1] in ([], [("mine", b"all of mine~2")], [("mine", b"all of mine")])
    return followed.wanted, "".join(told)


def test_a_capture_is_taken_once_of_each_hang_and_nothing_is_ended_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, told = captured(monkeypatch, CAPTURE, "", full=False)
    assert wanted is None
    assert told.count("all that is known of this hang") == 2
    assert "/captures/2.zip; ncclwatch analyze /captures/2.zip" in told
    assert "/captures/3.zip" not in told


@pytest.mark.parametrize(
    ("refused", "full", "why"),
    [
        ("", False, "all that is known of this hang: /captures/1.zip"),
        ("2 others are looking", False, "no capture of this hang: 2 others are looking"),
        ("", True, "cannot keep a capture of this hang ([Errno 28] No space left on device); set NCCLWATCH_CAPTURES"),
    ],
)
def test_a_job_is_ended_after_its_capture_or_without_one(
    monkeypatch: pytest.MonkeyPatch, refused: str, full: bool, why: str
) -> None:
    wanted, told = captured(monkeypatch, ABORT, refused, full)
    assert wanted is not None
    assert wanted.decision.action is Action.ABORT
    assert told.count(why) == 1


def test_what_is_wanted_is_waited_for_while_a_capture_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """On several nodes another one may have ended the ranks meanwhile, and with them the command here."""
    monkeypatch.setattr(following, "POLL_S", 0.01)
    monkeypatch.setattr(decision, "STACKS_S", 0.0)
    taken, begun = threading.Event(), threading.Event()

    def keep(job: str, data: bytes) -> Path:
        begun.set()
        assert taken.wait(10)
        return Path("/captures/1.zip")

    server = Server()
    server.open("one", "mine")
    followed = Following(server, "mine", lambda _: None, policy=RESTART, keep_capture=keep)  # type: ignore[arg-type]
    followed.start()
    assert begun.wait(10)
    assert followed.wanted is None
    threading.Timer(0.2, taken.set).start()
    wanted = followed.decided()
    assert wanted is not None
    assert wanted.decision.action is Action.RESTART
    server.state = "ended"
    followed.finish()


def in_its_hook(way: Policy, server: Server, told: list[str], goes_on: Path) -> Following:
    """Follow a job that hangs until its hook runs, which ends once the file `goes_on` is there."""
    script, ran = goes_on.with_name("on-hang"), goes_on.with_name("ran")
    script.write_text(f"#!/bin/sh\ntouch {ran}\nwhile [ ! -e '{goes_on}' ]; do sleep 0.05; done\n")
    script.chmod(0o755)
    server.open("one", "mine")
    policy = replace(way, hook=(str(script),))
    hooks = CommandHooks(policy, told.append)
    followed = Following(server, "mine", told.append, policy=policy, hooks=hooks)  # type: ignore[arg-type]
    followed.start()
    while not ran.exists():
        time.sleep(0.01)
    return followed


@pytest.mark.parametrize("way", [ABORT, CAPTURE])
def test_what_is_wanted_is_wanted_after_the_hook_and_a_report_follows_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: Policy
) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    monkeypatch.setattr(decision, "STACKS_S", 0.0)
    server, told, goes_on = Server(), [], tmp_path / "goes on"
    followed = in_its_hook(way, server, told, goes_on)
    assert followed.wanted is None
    threading.Timer(0.2, goes_on.touch).start()
    wanted = followed.decided()
    assert (wanted is not None) == (way is ABORT)
    server.state = "ended"
    followed.finish()
    assert [" finished with 0 in " in line for line in told if "hook" in line] == [False, True]


def test_a_job_that_goes_on_while_its_hook_runs_is_not_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such as one whose hook continues a stopped process."""
    monkeypatch.setattr(following, "POLL_S", 0.01)
    monkeypatch.setattr(decision, "STACKS_S", 0.0)
    server, told, goes_on = Server(), [], tmp_path / "goes on"
    followed = in_its_hook(ABORT, server, told, goes_on)
    server.standing = "resolved"
    goes_on.touch()
    assert followed.certain.wait(10)
    assert followed.decided() is None
    server.standing = "open"  # it hangs once more
    while followed.wanted is None:
        time.sleep(0.01)
    server.state = "ended"
    followed.finish()
    assert [line for line in told if "goes on" in line] == [
        "ncclwatch: not ending the command: it goes on (incident one)\n"
    ]
    assert sum("running hook" in line for line in told) == 1


@pytest.mark.parametrize("order", [("frozen", "code"), ("code", "frozen")])
def test_of_several_hangs_the_one_that_a_restart_does_not_cure_decides(
    monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    monkeypatch.setattr(decision, "STACKS_S", 0.0)
    server = Server()
    server.causes = {"frozen": "process_frozen", "code": "rank_conditional_collective"}
    for incident in order:
        server.open(incident, "mine")
    policy = in_force("policy", environ={})
    followed = Following(server, "mine", lambda _: None, policy=policy)  # type: ignore[arg-type]
    followed.start()
    assert followed.certain.wait(10)
    server.state = "ended"
    followed.finish()
    assert followed.wanted is not None
    assert (followed.wanted.decision.action, followed.wanted.hang.cause) == (Action.ABORT, server.causes["code"])
