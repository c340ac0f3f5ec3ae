"""Chooses the ranks whose histories may tell who parted first: their files are worth a second, deeper look."""

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.judge.theory.waits.wait_graph import cycles

SUSPECTS_OF_A_SIDE = 4
SUSPECTS_MAX = 64


def suspects(snapshot: JobSnapshot) -> tuple[int, ...]:
    """Return some ranks of each side of a mismatch, and of a circle."""
    graph = open_case(snapshot).graph
    found = [rank for each in graph.mismatches for side in each.sides for rank in side[:SUSPECTS_OF_A_SIDE]]
    found += [rank for circle in cycles(graph) for rank in circle[: 2 * SUSPECTS_OF_A_SIDE]]
    return tuple(dict.fromkeys(found))[:SUSPECTS_MAX]
