"""One node of a job stands by for the server that another one runs, and all know where to go."""

import msgspec

from ncclwatch.contract import config, wire
from ncclwatch.contract.model.job import Contact
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.registry import Jobs
from ncclwatch_server.security.scopes import Caller
from ncclwatch_server.watch.succession import ANSWER_S, NODES_S, SETTLED_S, Succession, recall
from tests.unit.server.server_values import digest

OFFER = "an offer"


def link(number: int) -> Link:
    """Return the connection of a node: node0 is where the server is."""
    host = f"node{number - 1}"
    return Link(
        number=number, agent=f"agent{number} {Caller(name='anyone').holder}", host=host, said_host=host, version="1",
        machine=f"machine{number}",
    )  # fmt: skip


def job_of(nodes: int, *, world_size: int = 0) -> tuple[Jobs, Job, list[Link]]:
    """Return a job of two ranks on each node."""
    jobs, links = Jobs(), [link(number) for number in range(1, nodes + 1)]
    for place, each in enumerate(links):
        said = wire.Announce(
            index=3, job="job", instance="i", attempt=0, world_size=world_size or 2 * nodes,
            ranks=(2 * place, 2 * place + 1), terminal=True,
        )  # fmt: skip
        found = jobs.announce(each, said, 10.0)
    return jobs, found, links


def sent(to: Link) -> list[wire.ServerMessage]:
    found = list(to.outbox)
    to.outbox.clear()
    return found


def test_the_lowest_rank_elsewhere_is_asked_once_the_job_has_settled() -> None:
    _, job, links = job_of(3)
    succession = Succession("node0")
    succession.look(job, 10.0 + SETTLED_S / 2)
    assert not any(sent(each) for each in links)
    succession.look(job, 10.0 + SETTLED_S)
    succession.look(job, 11.0 + SETTLED_S)
    assert [command.kind for command in sent(links[1])] == [wire.CommandKind.STAND_BY]
    assert not sent(links[0]) and not sent(links[2])


def test_all_are_told_where_to_go_and_the_standby_which_nodes_there_are() -> None:
    _, job, links = job_of(3)
    succession = Succession("node0")
    succession.look(job, 20.0)
    sent(links[1])
    succession.answered(links[2], wire.Standby(index=3, offer="not asked"))
    succession.answered(links[1], wire.Standby(index=3, offer=OFFER))
    succession.look(job, 21.0)
    succession.look(job, 22.0)
    told = [sent(each) for each in links]
    assert all(len(each) == 1 for each in told)
    plain = wire.Successor(index=3, host="node1", offer=OFFER, instead_of="node0")
    nodes = tuple(
        wire.KnownNode(agent=f"agent{n + 1}", host=f"node{n}", machine=f"machine{n + 1}", ranks=(2 * n, 2 * n + 1))
        for n in range(3)
    )
    assert [each[0] for each in told] == [plain, msgspec.structs.replace(plain, nodes=nodes), plain]


def test_a_node_that_comes_later_is_told_and_told_of() -> None:
    jobs, job, links = job_of(2, world_size=6)
    succession = Succession("node0")
    succession.look(job, 20.0)
    succession.answered(links[1], wire.Standby(index=3, offer=OFFER))
    succession.look(job, 21.0)
    for each in links:
        sent(each)
    late = link(3)
    said = wire.Announce(
        index=8, job="job", instance="i", attempt=0, world_size=6, ranks=(4, 5), terminal=True
    )  # fmt: skip
    jobs.announce(late, said, 22.0)
    succession.look(job, 22.0)
    succession.look(job, 21.0 + NODES_S)
    assert [message.index for message in sent(late)] == [8]
    assert [len(message.nodes) for message in sent(links[1])] == [3]
    assert not sent(links[0])


def test_one_that_is_lost_or_does_not_answer_is_replaced() -> None:
    jobs, job, links = job_of(4)
    succession = Succession("node0")
    succession.look(job, 20.0)
    succession.look(job, 20.1 + ANSWER_S)  # no server could be started there
    assert [command.kind for command in sent(links[2])] == [wire.CommandKind.STAND_BY]
    succession.answered(links[2], wire.Standby(index=3, offer=OFFER))
    jobs.lose(links[2], 90.0)
    succession.look(job, 91.0)
    assert [command.kind for command in sent(links[3])] == [wire.CommandKind.STAND_BY]


def test_an_offer_that_is_too_long_is_none() -> None:
    _, job, links = job_of(2)
    succession = Succession("node0")
    succession.look(job, 20.0)
    succession.answered(links[1], wire.Standby(index=3, offer="x" * (config.OFFER_BYTES_MAX + 1)))
    succession.look(job, 21.0)
    assert not sent(links[0])


def taken_over(contact: Contact = Contact.MUTE) -> tuple[Jobs, Job, Link]:
    """Return the job at the server that has taken over on node1, where its agent has told of node0 and node2."""
    jobs, own = Jobs(), link(2)
    said = wire.Announce(index=3, job="job", instance="i", attempt=0, world_size=6, ranks=(2, 3), terminal=True)
    job = jobs.announce(own, said, 100.0)
    nodes = tuple(
        wire.KnownNode(agent=f"agent{n + 1}", host=f"node{n}", machine=f"machine{n + 1}", ranks=(2 * n, 2 * n + 1))
        for n in range(3)
    )
    before = wire.Predecessor(index=3, nodes=nodes, host="node0", silent_s=11.0, contact=contact)
    for _ in range(2):  # its agent may connect again
        recall(job, before, own, 100.0)
    return jobs, job, own


def test_the_nodes_that_have_not_come_are_silent_the_lost_one_since_it_was_lost() -> None:
    _, job, own = taken_over()
    own.clock = lambda: 101.0
    digest(job.state, 2, 101.0, {2: 0.0, 3: 0.0})
    job.state.fold(101.0)
    job.suspicion = job.state.suspicion(101.0)
    assert job.suspicion.silent == {0: 12.0, 1: 12.0}
    assert job.suspicion.unheard == {0, 1, 4, 5}
    (quiet,) = job.snapshot(101.0).quiet_nodes
    assert (quiet.host, quiet.ranks, quiet.contact) == ("node0", (0, 1), Contact.MUTE)
    assert quiet.contact_s >= 11.0
    now = 101.0 + limits.SILENT_S
    digest(job.state, 2, now, {2: 0.0, 3: 0.0})
    job.state.fold(now)
    job.suspicion = job.state.suspicion(now)
    assert {rank: round(silent_s) for rank, silent_s in job.suspicion.silent.items()} == {0: 17, 1: 17, 4: 6, 5: 6}


def test_a_node_that_comes_gets_its_ranks_at_once() -> None:
    jobs, job, _ = taken_over()
    said = wire.Announce(index=1, job="job", instance="i", attempt=0, world_size=6, ranks=(4, 5), terminal=True)
    jobs.announce(link(3), said, 102.0)
    digest(job.state, 2, 102.0, {2: 0.0, 3: 0.0})
    job.state.fold(102.0)
    assert [job.state.owner(rank) for rank in (4, 5)] == [3, 3]
    assert job.state.suspicion(103.0).unheard == {0, 1}


def test_ranks_outside_of_the_job_are_left_out() -> None:
    _, job, links = job_of(1, world_size=4)
    nodes = (wire.KnownNode(agent="a", host="h", machine="", ranks=(-1, 3, 4, 10**9)),)
    recall(job, wire.Predecessor(index=3, nodes=nodes, host="h", silent_s=-5.0, contact=Contact.CLOSED), links[0], 20.0)
    assert job.state.seen.tolist() == [True, True, False, True]
