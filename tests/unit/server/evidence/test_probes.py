"""Other nodes of a job are asked about those that answer the server no more."""

import pytest

from ncclwatch.contract import config, wire
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.evidence.probes import ANSWERED_S, ASKED_EACH_MAX, EVERY_S, GOOD_S, UNANSWERED_MAX, Node, Probes


def node(number: int, *addresses: str) -> Node:
    """Return a node with two ranks; without an address its agent is an older one."""
    link = Link(number=number, agent=f"agent{number}", host=f"node{number}", version="1")
    return Node(link=link, index=number + 100, first=2 * number, addresses=addresses)


def nodes(count: int) -> list[Node]:
    return [node(number, f"10.0.0.{number}") for number in range(count)]


def asked(of: Node) -> list[wire.Command]:
    found = [message for message in of.link.outbox if isinstance(message, wire.Command)]
    of.link.outbox.clear()
    return found


def answer(probes: Probes, of: Node, *places: int, now: float) -> None:
    for command in asked(of):
        probes.hear((of.link.number, command.id), places, of.link.host, now)


def test_the_nodes_of_rank_0_and_of_the_next_ranks_are_asked() -> None:
    every = nodes(9)
    Probes().ask(every[4:5], [*every[:4], *every[5:]], 10.0)
    about = {each.link.host: asked(each) for each in every}
    assert {host for host, commands in about.items() if commands} == {"node0", "node2", "node3", "node5"}
    (command,) = about["node3"]
    assert (command.kind, command.index, command.text) == (wire.CommandKind.PROBE, 103, "10.0.0.4")


def test_each_node_of_a_block_is_asked_about_at_the_store_of_the_job() -> None:
    every = nodes(9)
    Probes().ask(every[2:8], [*every[:2], every[8]], 10.0)
    (command,) = asked(every[0])
    assert command.text.split("; ") == [f"10.0.0.{number}" for number in range(2, 8)]


def test_one_question_is_about_several_nodes_with_all_their_addresses() -> None:
    quiet = [node(1, "10.0.0.1", "10.1.0.1"), node(2, "10.0.0.2")]
    other, probes = node(3, "10.0.0.3"), Probes()
    probes.ask(quiet, [other], 10.0)
    assert [command.text for command in asked(other)] == ["10.0.0.1 10.1.0.1; 10.0.0.2"]


def test_an_older_agent_is_neither_asked_nor_asked_about() -> None:
    old, others, probes = node(1), [node(2), node(3, "10.0.0.3")], Probes()
    probes.ask([old, node(4, "10.0.0.4")], others, 10.0)
    assert asked(others[0]) == []
    assert [command.text for command in asked(others[1])] == ["10.0.0.4"]


def test_an_answer_counts_for_a_while_and_names_who_got_it_first() -> None:
    one, two, three = nodes(3)
    probes = Probes()
    probes.ask([three], [one, two], 10.0)
    assert probes.reached_from(2, 10.0) == ""
    answer(probes, two, 0, now=10.5)
    answer(probes, one, 0, now=10.6)
    assert probes.reached_from(2, 10.5 + GOOD_S) == "node1"
    assert probes.reached_from(2, 10.7 + GOOD_S) == ""


def test_no_answer_says_nothing_of_a_node_and_ends_nothing() -> None:
    one, two = nodes(2)
    probes = Probes()
    probes.ask([two], [one], 10.0)
    answer(probes, one, 0, now=10.5)
    probes.ask([two], [one], 10.0 + EVERY_S)
    answer(probes, one, now=11.0 + EVERY_S)
    assert probes.reached_from(1, 11.0 + EVERY_S) == "node0"


def test_who_gets_an_answer_no_more_is_named_no_more() -> None:
    """Else a verdict names a witness that is down itself by now."""
    one, two, three = nodes(3)
    probes = Probes()
    probes.ask([three], [one, two], 10.0)
    answer(probes, one, 0, now=10.5)
    answer(probes, two, 0, now=10.6)
    probes.ask([three], [two], 18.0)
    answer(probes, two, 0, now=18.1)
    assert probes.reached_from(2, 10.5 + GOOD_S) == "node0"
    assert probes.reached_from(2, 10.6 + GOOD_S) == "node1"


def test_an_agent_that_does_not_answer_is_asked_a_few_times_and_again_after_a_while() -> None:
    """Else questions pile up on a node that is slow, and keep it from all else."""
    one, two, three = nodes(3)
    probes = Probes()
    for number in range(UNANSWERED_MAX + 1):
        probes.ask([three], [one, two], 10.0 + number * EVERY_S)
        answer(probes, two, now=10.5 + number * EVERY_S)
    assert len(asked(one)) == UNANSWERED_MAX
    probes.ask([three], [one], 11.0 + ANSWERED_S)
    assert len(asked(one)) == 1


def test_an_answer_may_come_after_the_next_question() -> None:
    one, two = nodes(2)
    probes = Probes()
    probes.ask([two], [one], 10.0)
    (first,) = asked(one)
    probes.ask([two], [one], 10.0 + EVERY_S)
    assert probes.asked((0, first.id))
    probes.hear((0, first.id), (0,), "node0", 10.5 + EVERY_S)
    assert probes.reached_from(1, 11.0 + EVERY_S) == "node0"


def test_a_slow_answer_counts_from_when_it_came() -> None:
    """The node was tried just before, however long the agent took to see what its ranks are connected to."""
    one, two = nodes(2)
    probes = Probes()
    probes.ask([two], [one], 10.0)
    (command,) = asked(one)
    probes.ask([two], [], 10.0 + ANSWERED_S)
    assert probes.asked((0, command.id))
    probes.hear((0, command.id), (0,), "node0", 10.0 + ANSWERED_S)
    assert probes.reached_from(1, 10.0 + ANSWERED_S + GOOD_S) == "node0"


def test_no_text_of_a_question_is_kept_on_the_connection() -> None:
    """It may name 64 nodes, and there is one every 3 s for as long as they are silent."""
    one, two = nodes(2)
    probes = Probes()
    probes.ask([two], [one], 10.0)
    (command,) = asked(one)
    assert not one.link.asked(command.id, wire.CommandKind.PROBE, one.index, command.text)


@pytest.mark.parametrize("places", [(1,), (-1,), (2**40,)])
def test_a_place_that_was_not_asked_about_is_nobody(places: tuple[int, ...]) -> None:
    one, two = nodes(2)
    probes = Probes()
    probes.ask([two], [one], 10.0)
    answer(probes, one, *places, now=10.5)
    assert not any(probes.reached_from(number, 10.5) for number in (-1, 0, 1))


def test_an_answer_counts_once_and_unasked_ones_do_not() -> None:
    one, two = nodes(2)
    probes = Probes()
    probes.hear((0, 1), (0,), "node0", 10.0)
    assert probes.reached_from(1, 10.0) == ""
    probes.ask([two], [one], 10.0)
    (command,) = asked(one)
    probes.hear((0, command.id), (), "node0", 10.5)
    assert not probes.asked((0, command.id))
    probes.hear((0, command.id), (0,), "node0", 10.6)
    assert probes.reached_from(1, 10.6) == ""


def test_half_a_big_cluster_is_asked_about_by_those_next_to_it() -> None:
    """One message to each, however many nodes are quiet, so that no outbox fills."""
    every = nodes(2000)
    Probes().ask(every[1000:], every[:1000], 10.0)
    commands = [asked(each) for each in every[:1000]]
    assert max(map(len, commands)) == 1
    about = [len(each.text.split("; ")) for found in commands for each in found]
    assert max(about) == config.PROBED_MAX
    assert sum(about) == 512 * ASKED_EACH_MAX


def test_it_asks_now_and_then() -> None:
    probes = Probes()
    assert probes.due(0.0)
    probes.ask([], [], 10.0)
    assert not probes.due(10.0 + EVERY_S - 0.1)
    assert probes.due(10.0 + EVERY_S)
