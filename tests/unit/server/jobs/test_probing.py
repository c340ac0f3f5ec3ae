"""When other nodes of a job are asked about one that is silent."""

from ncclwatch.contract import wire
from ncclwatch.contract.model.job import Contact
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.evidence.probes import EVERY_S
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.registry import Jobs
from ncclwatch_server.state.suspicion import Suspicion

SILENT = Suspicion(silent={2: 6.0, 3: 6.0}, waiting=(0, 1))


class Scene:
    """A job of two nodes with two ranks each, the second of which is silent."""

    def __init__(self, suspicion: Suspicion = SILENT) -> None:
        self.jobs, self.contact = Jobs(), Contact.MUTE
        self.links = [self._link(number) for number in (1, 2)]
        for place, each in enumerate(self.links):
            said = wire.Announce(
                index=0, job="job", instance="i", attempt=0, world_size=4, terminal=False,
                ranks=(2 * place, 2 * place + 1), addresses=(f"10.0.0.{each.number}",),
            )  # fmt: skip
            self.job: Job = self.jobs.announce(each, said, 10.0)
        self.job.suspicion = suspicion

    def _link(self, number: int) -> Link:
        return Link(
            number=number, agent=f"agent{number}", host=f"node{number}", version="1",
            contact=lambda: (self.contact, 6.0),
        )  # fmt: skip

    def asked(self, now: float = 20.0) -> list[str]:
        self.job.probe(now)
        commands = [each for each in self.links[0].outbox if isinstance(each, wire.Command)]
        assert not self.links[1].outbox
        self.links[0].outbox.clear()
        return [each.text for each in commands if each.kind is wire.CommandKind.PROBE]


def test_while_ranks_wait_the_other_node_is_asked_about_a_silent_one() -> None:
    assert Scene().asked() == ["10.0.0.2"]


def test_where_nobody_waits_nobody_is_asked() -> None:
    """A node that the server alone has lost may train on for days: its neighbours have no work with that."""
    assert Scene(Suspicion(silent=SILENT.silent)).asked() == []


def test_a_node_whose_connection_has_ended_is_asked_about_only_where_its_kernel_was_mute() -> None:
    """Of any other one an answer says nothing new: its kernel has closed the connection."""
    for contact in (Contact.CLOSED, Contact.UNKNOWN, Contact.ACKNOWLEDGES):
        scene = Scene()
        scene.jobs.lose(scene.links[1], 19.0)
        scene.contact = contact
        assert scene.asked() == []
        scene.contact = Contact.MUTE
        assert scene.asked(20.0 + EVERY_S) == ["10.0.0.2"]


def test_a_job_that_is_over_keeps_nothing_of_it() -> None:
    scene = Scene()
    scene.job.probe(20.0)
    question = (1, scene.links[0].outbox[-1].id)
    scene.job.release()
    assert not scene.job.probes.asked(question)
