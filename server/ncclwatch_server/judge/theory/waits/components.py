"""Finds the nodes of a graph that can all be reached from each other."""

from collections.abc import Mapping, Sequence


def strong_components(edges: Mapping[int, Sequence[int]]) -> list[frozenset[int]]:
    """Return the strongly connected components of a graph, the last ones of each way first (Tarjan, 1972)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[frozenset[int]] = []
    for start in edges:
        if start in order:
            continue
        path = [(start, iter(edges[start]))]
        _enter(start, order, low, stack, on_stack)
        while path:
            node, rest = path[-1]
            fresh = next((to for to in rest if to not in order or _lower(low, node, to, order, on_stack)), None)
            if fresh is not None:
                _enter(fresh, order, low, stack, on_stack)
                path.append((fresh, iter(edges[fresh])))
                continue
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[node])
            if low[node] == order[node]:
                at = stack.index(node) if stack[-1] != node else len(stack) - 1
                found.append(frozenset(stack[at:]))
                on_stack.difference_update(stack[at:])
                del stack[at:]
    return found


def _enter(node: int, order: dict[int, int], low: dict[int, int], stack: list[int], on_stack: set[int]) -> None:
    order[node] = low[node] = len(order)
    stack.append(node)
    on_stack.add(node)


def _lower(low: dict[int, int], node: int, to: int, order: Mapping[int, int], on_stack: set[int]) -> bool:
    """Note an edge to a node that was seen before. Always false: there is nothing to enter."""
    if to in on_stack:
        low[node] = min(low[node], order[to])
    return False
