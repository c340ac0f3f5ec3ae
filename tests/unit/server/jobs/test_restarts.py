"""After each restart by an elastic launcher all nodes are of one job, whatever each of them counts.

torchrun counts the failures of its own node, so that the nodes of one restart say different attempts.
"""

import itertools
import random

import pytest

from ncclwatch_server import limits
from tests.unit.server.jobs.played_nodes import Node, World, end


def three(world: World) -> tuple[Node, Node, Node]:
    """Return three nodes with a rank each, which have trained for a while."""
    nodes = Node(world, "a"), Node(world, "b"), Node(world, "c")
    for rank, node in enumerate(nodes):
        node.start(0, rank, world_size=3)
    world.tick(20)
    return nodes


def restarted(world: World, order: str) -> dict[str, Node]:
    """Return three nodes after a restart: node b has failed. The first of the order is heard first."""
    nodes = dict(zip("abc", three(world), strict=True))
    end(world, *nodes.values())
    for name in order:
        nodes[name].start(int(name == "b"), "abc".index(name), world_size=3)
    world.tick(15)
    return nodes


@pytest.mark.parametrize("order", ["".join(each) for each in itertools.permutations("abc")])
@pytest.mark.parametrize("new", ["", "b", "bc", "abc"])
def test_agents_may_be_new_after_a_restart(new: str, order: str) -> None:
    """Whoever waits for the other nodes for minutes has no rank meanwhile."""
    world = World()
    nodes = dict(zip("abc", three(world), strict=True))
    end(world, *nodes.values())
    for name in new:
        nodes[name] = nodes[name].new_agent(f"{name}2")
    for name in order:
        nodes[name].start(int(name == "b"), "abc".index(name), world_size=3)
        world.tick(1)
    world.tick(14)
    assert world.one_job().remarks == ()


@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("attempt", [0, 1])
def test_a_spare_takes_the_place_of_a_node_that_died(attempt: int, *, first: bool) -> None:
    world = World()
    a, b, c = three(world)
    c.die()
    end(world, a, b)
    spare = Node(world, "d")
    begun = [(a, attempt, 0), (b, attempt, 1), (spare, 0, 2)]
    for node, says, rank in reversed(begun) if first else begun:
        node.start(says, rank, world_size=3)
        world.tick(1)
    world.tick(60)
    world.one_job()


def test_ranks_that_live_on_where_a_node_was_lost_are_none_of_the_next_run() -> None:
    """Its launcher was killed, and leaves them behind. The spare takes half a minute to import torch."""
    world = World()
    a, b, c = three(world)
    end(world, a, b)
    for rank, node in enumerate((a, b)):
        node.start(1, rank, world_size=3)
    world.tick(30)
    spare = Node(world, "d")
    spare.start(0, 2, world_size=3)
    world.tick(60)
    c.die()
    world.one_job()


@pytest.mark.parametrize("name", ["b", "c"])
@pytest.mark.parametrize("order", ["bac", "acb"])
def test_an_agent_that_is_started_again_within_the_run_finds_its_job(name: str, order: str) -> None:
    world = World()
    nodes = restarted(world, order)
    again = nodes[name].new_agent(f"{name}2")
    world.tick(2)
    again.start(int(name == "b"), "abc".index(name), world_size=3)
    world.tick(30)
    world.one_job()


@pytest.mark.parametrize("order", ["".join(each) for each in itertools.permutations("abc")])
def test_a_server_that_starts_between_the_ends_of_one_run_and_the_beginnings_of_the_next(order: str) -> None:
    world = World()
    nodes = dict(zip("abc", three(world), strict=True))
    for node in nodes.values():
        node.end_ranks()
    for name, node in nodes.items():
        node.start(int(name == "a"), "abc".index(name), world_size=3)
    world.tick(1)
    world.start_server_again()
    for name in order:
        nodes[name].connect()
        world.tick(0.5)
    for node in nodes.values():
        node.let_go(1)
    world.tick(limits.SPARE_S + 5)
    world.one_job()


@pytest.mark.parametrize("order", ["abc", "cab", "bac"])
def test_a_job_that_was_given_up_is_one_again(order: str) -> None:
    world = World()
    nodes = restarted(world, order)
    for node in nodes.values():
        node.hang_up()
    world.tick(limits.ABANDONED_S + 10)
    assert world.jobs.listed()[0].given_up
    for name in reversed(order):
        nodes[name].connect()
        world.tick(0.5)
    world.tick(30)
    world.one_job()


def test_a_connection_that_is_made_anew_after_the_end_begins_nothing() -> None:
    world = World()
    nodes = restarted(world, "acb")
    for node in nodes.values():
        node.end_ranks()
    world.tick(2.5)
    (job,) = world.jobs.listed()
    assert job.ended
    nodes["b"].hang_up()
    nodes["b"].connect()
    world.tick(5)
    assert world.jobs.listed() == (job,)


def test_fewer_ranks_after_a_node_died() -> None:
    world = World()
    a, b, c = three(world)
    c.die()
    end(world, a, b)
    a = a.new_agent("a2")
    a.start(0, 0, world_size=2)
    world.tick(1)
    b.start(0, 1, world_size=2)
    world.tick(15)
    assert world.one_job().world_size == 2


@pytest.mark.parametrize("told", [False, True], ids=["nobody says its machine", "its machine is known"])
def test_an_agent_that_is_started_again_while_others_have_ended_begins_no_run(*, told: bool) -> None:
    """The others are through, and their node is quiet, when the agent of the rank that still saves is followed."""
    world = World()
    a, b = (Node(world, name, None if told else "") for name in "ab")
    a.start(0, 0, world_size=2)
    b.start(0, 1, world_size=2)
    world.tick(20)
    before = b.job
    a.end_ranks()
    again = b.new_agent("b2")
    world.tick(6)
    again.start(0, 1, world_size=2)
    assert again.job is before


def test_two_that_stood_apart_come_together_after_the_next_restart() -> None:
    """It fails again before the server, which was started since, has brought them together."""
    world = World()
    a, b = Node(world, "a"), Node(world, "b")
    a.start(1, 0, world_size=2)
    world.tick(1)
    b.start(0, 1, world_size=2)
    world.tick(5)
    end(world, a, b)
    a.start(2, 0, world_size=2)
    world.tick(1)
    b.start(0, 1, world_size=2)
    world.tick(30)
    world.one_job()


def test_a_stranger_between_two_attempts_ends_no_job() -> None:
    """Whoever claims a rank in one attempt, and speaks for another in the next, brings nothing together."""
    world = World()
    a, b = Node(world, "a"), Node(world, "b")
    a.start(0, 0, world_size=2)
    b.start(0, 1, world_size=2)
    world.tick(30)
    stranger = Node(world, "stranger")
    stranger.start(0, 0, world_size=2)
    stranger.start(5, 1, world_size=2)
    world.tick(11)
    stranger.start(7, 0, world_size=2)
    world.tick(20)
    world.nodes.remove(stranger)
    assert a.job is b.job is not None
    assert world.jobs.listed()[0] is a.job
    assert not a.job.ended
    assert a.link is not None and b.link is not None
    assert [a.job.state.ranks_of(each.number) for each in (a.link, b.link)] == [(0,), (1,)]


class Launch:
    """Four nodes whose launchers start everything again when any rank fails."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        self.nodes = [Node(self.world, name) for name in "abcd"]
        self.counts, self.ranks = [0] * 4, [0, 1, 2, 3]  # attempt and rank on each node
        for rank, node in enumerate(self.nodes):
            node.start(0, rank, world_size=4)
        self.world.tick(3)

    def restart(self, new: float, dead: float) -> None:
        """Lose a node, or none; have some agents followed by new ones; begin again in any order."""
        rng = self.rng
        lost = rng.randrange(4) if rng.random() < dead else -1
        over = lost >= 0 or rng.random() < 0.6  # all agents have let go of the run before
        if lost >= 0:
            self.nodes[lost].die()
        if over:
            end(self.world, *(node for number, node in enumerate(self.nodes) if number != lost))
        if lost >= 0:
            self.nodes[lost] = Node(self.world, f"spare{self.world.links}")
        self.counts = [(count + (rng.random() < 0.4)) * (n != lost) for n, count in enumerate(self.counts)]
        rng.shuffle(self.ranks)
        before = [0 if over else node.index for node in self.nodes]
        for number in rng.sample(range(4), 4):
            if over and number != lost and rng.random() < new:
                self.nodes[number] = self.nodes[number].new_agent(f"new{self.world.links}")
            if before[number]:
                self.nodes[number].end_ranks(before[number])
            self.nodes[number].start(self.counts[number], self.ranks[number], world_size=4)
            self.world.tick(1 if rng.random() < 0.3 else 0)
        self.world.tick(2)
        for node, index in zip(self.nodes, before, strict=True):
            if index:
                node.let_go(index)
        self.world.tick(25)


@pytest.mark.parametrize("dead", [0.0, 0.5], ids=["all nodes stay", "nodes are replaced"])
@pytest.mark.parametrize("new", [0.0, 0.5], ids=["agents stay", "agents are new"])
@pytest.mark.parametrize("seed", range(15))
def test_four_restarts_at_random(seed: int, new: float, dead: float) -> None:
    launch = Launch(seed)
    for _ in range(4):
        launch.restart(new, dead)
        assert launch.world.one_job().seen == 4
