"""Asks other nodes of a job whether a node answers them, where it answers this server no more.

A node that the server alone cannot reach goes on training, and its ranks may keep others waiting for a reason of their
own. An agent tries to connect to a port on which nothing listens there: a refusal is an answer of that node's kernel.
No answer says nothing, since a firewall may drop what is sent.
"""

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ncclwatch.contract import config
from ncclwatch.contract.wire import CommandKind
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.evidence.inspection import Question

EVERY_S = 3.0
GOOD_S = 3 * EVERY_S + 1.0  # that an answer counts
ANSWERED_S = 60.0  # that an answer is waited for
UNANSWERED_MAX = 3  # questions to one agent: on a slow node they must not pile up, and a few answers may be lost
ASKED_EACH_MAX = 4  # other nodes that are asked about one
NODES_MAX = 512  # asked about at once; what others get of further ones is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the job."""

    link: Link
    index: int  # of the job on that connection
    first: int  # the lowest rank there
    addresses: tuple[str, ...]  # (): its agent did not say, and answers no such question


class Probes:
    """What other nodes of one job say of those that answer the server no more."""

    def __init__(self) -> None:
        self._asked_at = float("-inf")
        # When it was asked, and the connections of the nodes that it is about, in that order.
        self._questions: dict[Question, tuple[float, tuple[int, ...]]] = {}
        self._reached: dict[int, dict[str, float]] = {}  # by connection: who gets an answer, and when the last one came

    def due(self, now: float) -> bool:
        """Whether it is time to ask."""
        return now - self._asked_at >= EVERY_S

    def ask(self, nodes: Iterable[Node], others: Iterable[Node], now: float) -> None:
        """Ask other nodes about these."""
        self._asked_at = now
        self._questions = {key: asked for key, asked in self._questions.items() if now - asked[0] <= ANSWERED_S}
        self._reached = {number: good for number, said in self._reached.items() if (good := _good(said, now))}
        unanswered = Counter(number for number, _ in self._questions)
        able = [other for other in others if other.addresses and unanswered[other.link.number] < UNANSWERED_MAX]
        able.sort(key=lambda other: other.first)
        firsts = [other.first for other in able]
        asked: list[list[Node]] = [[] for _ in able]
        for node in [node for node in nodes if node.addresses][:NODES_MAX]:
            free = (place for place in _candidates(firsts, node.first) if len(asked[place]) < config.PROBED_MAX)
            for place in itertools.islice(free, ASKED_EACH_MAX):
                asked[place].append(node)
        for other, about in zip(able, asked, strict=True):
            if about:
                text = "; ".join(" ".join(node.addresses) for node in about)
                command = other.link.command(CommandKind.PROBE, other.index, text=text)
                self._questions[other.link.number, command] = now, tuple(node.link.number for node in about)

    def asked(self, question: Question) -> bool:
        """Whether an answer to that is still wanted."""
        return question in self._questions

    def hear(self, question: Question, answering: Iterable[int], host: str, now: float) -> None:
        """Note which nodes have answered another one, by their place in a question."""
        _, asked = self._questions.pop(question, (now, ()))
        for place in answering:
            if 0 <= place < len(asked):
                self._reached.setdefault(asked[place], {})[host] = now

    def reached_from(self, number: int, now: float) -> str:
        """Return the host that gets an answer of the node of a connection, the first of several, "" if none does."""
        return next(iter(_good(self._reached.get(number, {}), now)), "")


def _good(said: Mapping[str, float], now: float) -> dict[str, float]:
    return {host: at for host, at in said.items() if now - at <= GOOD_S}


def _candidates(firsts: Sequence[int], first: int) -> Iterator[int]:
    """Yield places in a sorted list of the lowest ranks of nodes, the likeliest to have a connection first.

    The store of the job is on the node of rank 0, and all ranks are connected to it. Then nodes whose ranks are
    neighbours, one of each side in turn: NCCL joins ranks to a ring.
    """
    if firsts and firsts[0] == 0:
        yield 0
    above = bisect_left(firsts, first)
    for step in range(len(firsts)):
        if above - 1 - step >= 0 and firsts[above - 1 - step] != 0:
            yield above - 1 - step
        if above + step < len(firsts) and firsts[above + step] != 0:
            yield above + step
