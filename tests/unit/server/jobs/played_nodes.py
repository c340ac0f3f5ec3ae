"""Nodes of one launch, whose agents talk to a real registry as they do on their lines. Time is made up."""

from types import SimpleNamespace
from typing import Any

import msgspec

from ncclwatch.contract import digests, wire
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.ingest.agent_news import AgentNews
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.jobs.registry import Jobs


class World:
    """A server, and whoever talks to it."""

    def __init__(self) -> None:
        self.jobs = Jobs()
        self.now = 100.0
        self.links = 0
        self.nodes: list[Node] = []
        counters = SimpleNamespace(digests=0, messages=0, jobs_refused=0, count_foreign=lambda kind: None)
        self.watch: Any = SimpleNamespace(
            jobs=self.jobs, look_within=lambda s: None, claimed=lambda job, link: None, counters=counters,
            refusals=SimpleNamespace(note=lambda *a: None), successions=None,
        )  # fmt: skip

    def start_server_again(self) -> None:
        """Let another server, which knows nothing, take the place of this one. Nobody has connected to it yet."""
        self.jobs = self.watch.jobs = Jobs()
        for node in self.nodes:
            node.news = None

    def tick(self, seconds: float) -> None:
        """Let time pass: all agents send digests, and jobs that are over are judged for the last time."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for node in list(self.nodes):
                node.send_digests()
            for job in self.jobs.all():
                self._judge(job)
            self.jobs.prune(self.now)

    def _judge(self, job: Job) -> None:
        job.state.fold(self.now)
        if job.ended:
            return
        if not (job.state.over or job in self.jobs.retiring or job.deserted(self.now)):
            job.over_at = None
            return
        job.over_at = self.now if job.over_at is None else job.over_at
        if self.now - job.over_at >= (limits.FINAL_S if job.state.seen.all() else limits.FINAL_PARTIAL_S):
            job.release()

    def one_job(self) -> Job:
        """Return the job that is listed, of which there is one, and all living ranks of all nodes belong to it."""
        (job,) = self.jobs.listed()
        for node in self.nodes:
            assert node.job is job, node.name
            assert node.link is not None
            ranks = node.said[node.index].ranks
            assert job.state.ranks_of(node.link.number) == ranks, node.name
            assert not job.state.ended[list(ranks)].any(), node.name
        return job


class Node:
    """One node: its agent, the runs that it has seen, and its connection."""

    def __init__(self, world: World, name: str, machine: str | None = None) -> None:
        self.world, self.name, self.machine = world, name, name if machine is None else machine
        self.said: dict[int, wire.Announce] = {}  # by the index of the job on the connection
        self.index = self.run = 0
        self.link: Link | None = None
        self.news: AgentNews | None = None
        world.nodes.append(self)
        self.connect()

    @property
    def job(self) -> Job | None:
        """The job to which the newest ranks of this node belong."""
        return self.news.jobs.get(self.index) if self.news is not None else None

    def connect(self) -> None:
        """Dial, and tell everything in the order in which an agent does."""
        self.world.links += 1
        self.link = Link(
            number=self.world.links, agent=self.name, host=self.name, version="1", said_host=self.name,
            machine=self.machine, clock=lambda: self.world.now,
        )  # fmt: skip
        self.news = AgentNews(link=self.link, watch=self.world.watch, clock=lambda: self.world.now)
        for said in sorted(self.said.values(), key=lambda each: (each.attempt, -each.run)):
            self._send(said)

    def hang_up(self) -> None:
        """Lose the connection."""
        if self.news is not None and self.link is not None:
            self.world.jobs.lose(self.link, self.world.now)
        self.news = None

    def die(self) -> None:
        """End, with the agent."""
        self.hang_up()
        self.world.nodes.remove(self)

    def new_agent(self, name: str) -> "Node":
        """Let another agent follow on the same machine, which counts runs from 1."""
        self.die()
        return Node(self.world, name, self.machine)

    def start(self, attempt: int, *ranks: int, world_size: int) -> None:
        """Begin a run with these ranks."""
        self.index, self.run = self.index + 1, self.run + 1
        self.said[self.index] = wire.Announce(
            index=self.index, job="night", instance="node0:29500/x", attempt=attempt, run=self.run,
            world_size=world_size, ranks=ranks, terminal=False,
        )  # fmt: skip
        self._send(self.said[self.index])

    def end_ranks(self, index: int = 0) -> None:
        """Let the ranks of a run end, before the agent lets go of them."""
        index = index or self.index
        said = self.said[index] = msgspec.structs.replace(self.said[index], lives=False)
        job = self.news.jobs.get(index) if self.news is not None else None
        for rank in said.ranks if job is not None and self.link is not None else ():
            assert job is not None and self.link is not None
            if job.state.owner(rank) == self.link.number:
                job.state.note_ended(rank)

    def let_go(self, index: int = 0) -> None:
        """Let go of a run that has ended."""
        index = index or self.index
        if self.news is not None and index in self.news.jobs:
            self._send(wire.Gone(index=index))
        self.said.pop(index, None)

    def send_digests(self) -> None:
        """Tell how all ranks are."""
        for index in list(self.said) if self.news is not None else ():
            assert self.news is not None
            if index in self.news.jobs or index in self.news.refused:
                self.news.take_digest(digests.pack_digest(index, [], []))

    def _send(self, message: wire.Announce | wire.Gone) -> None:
        if self.news is not None:
            self.news.take_message(message, int(self.world.now))


def end(world: World, *nodes: Node) -> None:
    """Let the ranks of these nodes end, and their agents see it."""
    for node in nodes:
        node.end_ranks()
    world.tick(4)
    for node in nodes:
        node.let_go()
    world.tick(1)
