"""What `ncclwatch run` tells and reports is of its own command, however much else a server has seen."""

import time

import msgspec
import pytest

from ncclwatch.cli.client.answers import Incident, Job
from ncclwatch.cli.running import following
from ncclwatch.cli.running.following import Following


class Server:
    """A server with incidents of many jobs, each opened so many seconds ago."""

    def __init__(self) -> None:
        self.opened: dict[str, tuple[str, float]] = {}  # job and moment, by id
        self.state = "running"
        self.answered: list[int] = []

    def open(self, incident: str, job: str, ago_s: float = 0.0) -> None:
        self.opened[incident] = job, time.monotonic() - ago_s

    def check(self) -> None:
        pass

    def jobs(self) -> tuple[Job, ...]:
        return (Job(id="mine", state=self.state, world_size=2),)

    def incidents(self, within_s: float) -> tuple[Incident, ...]:
        lately = time.monotonic() - within_s
        found = tuple(
            Incident(id=i, job=job, state="open", cause="", certainty="", severity="critical", summary=i)
            for i, (job, at) in self.opened.items() if at >= lately
        )  # fmt: skip
        self.answered.append(len(found))
        return found

    def incident_text(self, incident: str) -> str:
        return incident

    def report(self, job: str) -> bytes:
        mine = [{"id": i} for i, (of, _) in self.opened.items() if of == job]
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
    assert followed.abort_wanted.wait(10)
    server.state = "ended"
    report = msgspec.json.decode(followed.finish())
    assert sorted(told) == ["now", "of its twin"]
    assert [each["id"] for each in report["incidents"]] == ["now"]
    assert max(server.answered) <= 4
