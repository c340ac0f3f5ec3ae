"""Has another node of a job stand by for a server that an agent started for this job alone.

That server is lost with its node. One of the other agents is asked to start a server that waits; all agents are told
its address beforehand, and go there when they lose this one. What the judge must know of the lost node, which reports
to nobody any more, is told to the new server by the agent beside it: which nodes there were, with which ranks.
"""

import functools
from collections.abc import Callable, Iterable

import numpy as np

from ncclwatch.contract import config, wire
from ncclwatch.contract.machine.boot import host_name
from ncclwatch.contract.model.job import Contact
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.jobs.job import Job, Served
from ncclwatch_server.state.owners import Speaker

SETTLED_S = 5.0  # after which a job's nodes are there, as a rule: the start of training is not slowed by a server
ANSWER_S = 60.0  # in which an agent must have its server ready, or another one is asked
NODES_S = 5.0  # between two tellings of the nodes


class Successions:
    """The standbys of all jobs of this server."""

    def __init__(self) -> None:
        self._of_job: dict[str, Succession] = {}

    def look(self, jobs: Iterable[Job], now: float) -> None:
        """Ask and tell what is due, of jobs that go on."""
        living = {job.id: job for job in jobs if not job.ended}
        self._of_job = {name: self._of_job.get(name) or Succession() for name in living}
        for name, job in living.items():
            self._of_job[name].look(job, now)

    def answered(self, job: Job, link: Link, said: wire.Standby) -> None:
        """Note that a server stands by for a job."""
        known = self._of_job.get(job.id)
        if known is not None:
            known.answered(link, said)


class Succession:
    """Who stands by for the server of one job, and who has been told."""

    def __init__(self, here: str = "") -> None:
        self._here = here or host_name()
        self._standby = 0  # number of its connection
        self._asked_at = 0.0
        self._offer = ""
        self._told: set[int] = set()  # connections
        self._tried: set[int] = set()  # connections that gave no answer
        self._nodes: tuple[wire.KnownNode, ...] = ()  # as the standby was told
        self._nodes_at = float("-inf")

    def look(self, job: Job, now: float) -> None:
        """Ask and tell what is due."""
        if now - job.known_since < SETTLED_S:
            return
        alive = {number: served for number, served in job.served.items() if served.alive}
        if self._standby not in alive or (not self._offer and now - self._asked_at > ANSWER_S):
            self._choose(job, alive, now)
        if self._offer:
            self._tell(job, alive, now)

    def answered(self, link: Link, said: wire.Standby) -> None:
        """Note that a server stands by."""
        if link.number == self._standby and len(said.offer) <= config.OFFER_BYTES_MAX:
            self._offer, self._told, self._nodes_at = said.offer, set(), float("-inf")

    def _choose(self, job: Job, alive: dict[int, Served], now: float) -> None:
        """Ask the agent of the lowest rank elsewhere."""
        if self._standby in alive:
            self._tried.add(self._standby)
        self._standby, self._offer = 0, ""
        for number, _ in _ranks_by_link(job):
            served = alive.get(number)
            if served is not None and number not in self._tried and served.link.said_host != self._here:
                self._standby, self._asked_at = number, now
                served.link.command(wire.CommandKind.STAND_BY, served.index)
                return

    def _tell(self, job: Job, alive: dict[int, Served], now: float) -> None:
        host = alive[self._standby].link.said_host
        for number in alive.keys() - self._told - {self._standby}:
            served = alive[number]
            served.link.send(wire.Successor(index=served.index, host=host, offer=self._offer, instead_of=self._here))
            self._told.add(number)
        if now - self._nodes_at < NODES_S:
            return
        self._nodes_at = now
        nodes = tuple(_known(alive[number], ranks) for number, ranks in _ranks_by_link(job) if number in alive)
        if nodes != self._nodes or self._standby not in self._told:
            self._nodes = nodes
            self._told.add(self._standby)
            served = alive[self._standby]
            served.link.send(
                wire.Successor(
                    index=served.index, host=host, offer=self._offer, instead_of=self._here, nodes=nodes
                )
            )  # fmt: skip


def recall(job: Job, said: wire.Predecessor, link: Link, now: float) -> None:
    """Count nodes that the server before this one knew, and that have not come here, as nodes that report no more.

    Whoever comes later gets its ranks at once: it is the same agent.
    """
    if any(number < 0 for number in job.served):  # it was told before, by the same agent on another connection
        return
    for position, node in enumerate(said.nodes):
        ranks = [rank for rank in node.ranks if 0 <= rank < job.world_size and not job.state.seen[rank]]
        if not ranks:
            continue
        number = -2 - position  # of no connection; -1 stands for nobody
        lost = node.host == said.host
        heard_at = now - max(0.0, said.silent_s) if lost else now
        agent = f"{node.agent} {link.caller.holder}"
        absent = Link(
            number=number, agent=agent, host=node.host, version="", said_host=node.host, machine=node.machine,
            caller=link.caller,
        )  # fmt: skip
        if lost:
            absent.contact = functools.partial(_lasting, said.contact, heard_at, link.clock)
        job.served[number] = Served(link=absent, index=0, terminal=False, lost=True)
        speaker = Speaker(agent=agent, host=node.host, token=link.caller.holder, machine=node.machine)
        job.state.announce(number, ranks, heard_at, speaker)
        job.state.lose(number, now)


def _lasting(contact: Contact, since: float, clock: Callable[[], float]) -> tuple[Contact, float]:
    return contact, clock() - since


def _known(served: Served, ranks: Iterable[int]) -> wire.KnownNode:
    link = served.link
    said = link.agent.removesuffix(f" {link.caller.holder}")
    return wire.KnownNode(agent=said, host=link.said_host, machine=link.machine, ranks=tuple(ranks))


def _ranks_by_link(job: Job) -> list[tuple[int, list[int]]]:
    """Return the ranks of each connection that speaks for some, the one of the lowest rank first."""
    owners = job.state.owners.of_rank
    order = np.argsort(owners, kind="stable")
    numbers, first = np.unique(owners[order], return_index=True)
    found = zip(numbers.tolist(), np.split(order, first[1:]), strict=True)
    return sorted(((number, ranks.tolist()) for number, ranks in found if number > 0), key=lambda each: each[1][0])
