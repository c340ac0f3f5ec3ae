"""Places the boxes and arrows of "who waits for whom". Pure: from an incident's rows to coordinates.

Ranks that are in one operation at one line are one box, however many they are. The culprits are at the top, where a
reader looks first, and every arrow goes from a rank that waits to one that has not come. Where ranks of one box wait
for each other, each gets its own. There are never more than BOXES_MAX boxes, COLUMNS_MAX side by side: what does not
fit is folded into one box for each distance from the culprits.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Culprit, Verdict, Waiters
from ncclwatch.contract.words.text import rank_list

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 300, 78, 32, 58, 10
COLUMNS_MAX = 3
BOXES_MAX = 12
LAYERS_MAX = BOXES_MAX // COLUMNS_MAX
SPLIT_MAX = 8  # more ranks of one box that wait for each other stay one box
TEXT_CHARS_MAX = 37
WHO_CHARS_MAX = 31  # in bold
_SHIFT = 16  # between an arrow and the one that comes back


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Ranks that stand in one place."""

    x: int
    y: int
    who: str
    doing: str
    place: str
    title: str  # all of it, for who points at the box
    blamed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A picture of boxes and arrows."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[str, ...]  # SVG paths
    sentences: tuple[str, ...]  # the same in words


@dataclass(slots=True, eq=False)
class _Node:
    ranks: set[int]
    doing: str
    site: CallSite | None
    blamed: bool
    awaits: set[int] = field(default_factory=set)
    to: "list[_Node]" = field(default_factory=list)
    layer: int = -1


def drawing_of(verdict: Verdict) -> Drawing | None:
    """Return the picture of a verdict, None where nobody waits for anybody."""
    nodes = _nodes(verdict)
    _connect(nodes)
    if not any(node.to for node in nodes):
        return None
    _layer(nodes)
    shown = _folded(nodes)
    _connect(shown)
    return _lay_out(shown)


def _nodes(verdict: Verdict) -> list[_Node]:
    culprits = {culprit.rank: culprit for culprit in verdict.culprits}
    rows = list(verdict.waiters)
    if not rows and verdict.victims:
        rows = [Waiters(ranks=verdict.victims, doing=verdict.op, site=None, awaits=tuple(culprits))]
    found: dict[tuple[str, CallSite | None, bool], _Node] = {}
    for row in rows:
        for blamed in (True, False):
            ranks = {rank for rank in row.ranks if (rank in culprits) is blamed}
            if ranks:
                node = found.setdefault((row.doing, row.site, blamed), _Node(set(), row.doing, row.site, blamed))
                node.ranks |= ranks
                node.awaits |= set(row.awaits)
    nodes = [part for node in found.values() for part in _parts(node, rows)]
    told = {rank for node in nodes for rank in node.ranks}
    nodes += _outside(culprit for rank, culprit in culprits.items() if rank not in told)
    return sorted(nodes, key=lambda node: (not node.blamed, min(node.ranks)))


def _parts(node: _Node, rows: Iterable[Waiters]) -> list[_Node]:
    """Return one node for each rank if they wait for each other, and are few; else the node as it is."""
    if len(node.ranks) == 1 or len(node.ranks) > SPLIT_MAX or not node.ranks & node.awaits:
        return [node]
    awaited: dict[int, set[int]] = {rank: set() for rank in node.ranks}
    for row in rows:
        for rank in node.ranks & set(row.ranks):
            if (row.doing, row.site) == (node.doing, node.site):
                awaited[rank] |= set(row.awaits)
    return [_Node({rank}, node.doing, node.site, node.blamed, awaited[rank]) for rank in sorted(node.ranks)]


def _outside(culprits: Iterable[Culprit]) -> list[_Node]:
    """Return nodes of culprits that wait for nobody: those that do the same together."""
    found: dict[tuple[str, CallSite | None], _Node] = {}
    for culprit in culprits:
        key = (culprit.doing, culprit.call_site)
        found.setdefault(key, _Node(set(), culprit.doing, culprit.call_site, True)).ranks.add(culprit.rank)
    return list(found.values())


def _connect(nodes: list[_Node]) -> None:
    for node in nodes:
        node.to = [other for other in nodes if other is not node and node.awaits & other.ranks]


def _layer(nodes: list[_Node]) -> None:
    """Give every node its distance from the culprits, along the arrows."""
    queue = deque(node for node in nodes if node.blamed)
    for node in queue:
        node.layer = 0
    while queue:
        goal = queue.popleft()
        for node in nodes:
            if node.layer < 0 and goal in node.to:
                node.layer = goal.layer + 1
                queue.append(node)
    top = max((node.layer for node in nodes), default=0)
    for node in nodes:
        if node.layer < 0:
            node.layer = top + 1


def _folded(nodes: list[_Node]) -> list[_Node]:
    """Return at most BOXES_MAX nodes. Those farthest from the culprits are folded first, the culprits last."""
    for node in nodes:
        node.layer = min(node.layer, LAYERS_MAX - 1)
    layers = [[node for node in nodes if node.layer == layer] for layer in sorted({node.layer for node in nodes})]
    for number in range(len(layers) - 1, -1, -1):
        others = sum(len(layer) for layer in layers) - len(layers[number])
        layers[number] = _fold(layers[number], max(COLUMNS_MAX, BOXES_MAX - others))
    return [node for layer in layers for node in layer]


def _fold(layer: list[_Node], most: int) -> list[_Node]:
    """Return at most so many nodes: the first of a layer, and one for all its others."""
    if len(layer) <= most:
        return layer
    shown, rest = layer[: most - 1], layer[most - 1 :]
    folded = _Node(set(), f"{len(rest)} other calls", None, layer[0].blamed, layer=layer[0].layer)
    for node in rest:
        folded.ranks |= node.ranks
        folded.awaits |= node.awaits
    return [*shown, folded]


def _rows(layer: list[_Node]) -> Iterator[list[_Node]]:
    """Yield a layer in rows of about the same length."""
    count = -(-len(layer) // COLUMNS_MAX)
    for number in range(count):
        yield layer[number * len(layer) // count : (number + 1) * len(layer) // count]


def _lay_out(nodes: list[_Node]) -> Drawing:
    layers = sorted({node.layer for node in nodes})
    rows = [row for layer in layers for row in _rows([node for node in nodes if node.layer == layer])]
    width = max(len(row) for row in rows) * (WIDTH + GAP_X) - GAP_X + 2 * MARGIN
    places: dict[int, tuple[int, int]] = {}
    for number, row in enumerate(rows):
        left = (width - len(row) * (WIDTH + GAP_X) + GAP_X) // 2
        for column, node in enumerate(row):
            places[id(node)] = (left + column * (WIDTH + GAP_X), MARGIN + number * (HEIGHT + GAP_Y))
    arrows = tuple(_arrow(places[id(node)], places[id(other)]) for node in nodes for other in node.to)
    last = MARGIN + len(rows) * (HEIGHT + GAP_Y) - GAP_Y
    arcs = any(f" {last}C" in arrow for arrow in arrows)  # from box to box of the last row, below it
    return Drawing(
        width=width,
        height=last + (GAP_Y if arcs else MARGIN),
        boxes=tuple(_box(node, places[id(node)]) for node in nodes),
        arrows=arrows,
        sentences=tuple(_sentence(node) for node in nodes),
    )


def _box(node: _Node, at: tuple[int, int]) -> Box:
    place = str(node.site) if node.site is not None else ""
    return Box(
        x=at[0],
        y=at[1],
        who=_cut(_who(node), WHO_CHARS_MAX),
        doing=_cut(node.doing),
        place=_cut(place),
        title=" ".join(filter(None, (_who(node), node.doing, place))),
        blamed=node.blamed,
    )


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return a path from one box to another. One that comes back lies beside it."""
    (x, y), (to_x, to_y) = start, end
    if to_y != y:
        down = to_y > y
        shift = _SHIFT if down else -_SHIFT
        x, to_x = x + WIDTH // 2 + shift, to_x + WIDTH // 2 + shift
        y, to_y = (y + HEIGHT, to_y - 4) if down else (y, to_y + HEIGHT + 4)
        middle = (y + to_y) // 2
        return f"M{x} {y}C{x} {middle} {to_x} {middle} {to_x} {to_y}"
    if abs(to_x - x) == WIDTH + GAP_X:
        right = to_x > x
        level = y + HEIGHT // 2 + (-10 if right else 10)
        return f"M{x + WIDTH} {level}H{to_x - 4}" if right else f"M{x} {level}H{to_x + WIDTH + 4}"
    x, to_x, bottom = x + WIDTH // 2, to_x + WIDTH // 2, y + HEIGHT
    return f"M{x} {bottom}C{x} {bottom + GAP_Y} {to_x} {bottom + GAP_Y} {to_x} {bottom + 4}"


def _sentence(node: _Node) -> str:
    place = f"at {node.site}" if node.site is not None else ""
    stands = " ".join(filter(None, (node.doing, place)))
    others = sorted({rank for other in node.to for rank in other.ranks & node.awaits})
    waits = f"waiting for {_ranks(others)}" if others else ""
    return f"{_who(node)}: {', '.join(filter(None, (stands, waits)))}."


def _who(node: _Node) -> str:
    return _ranks(node.ranks)


def _ranks(ranks: Iterable[int]) -> str:
    found = sorted(set(ranks))
    return f"rank{'s' if len(found) != 1 else ''} {rank_list(found)}"


def _cut(text: str, most: int = TEXT_CHARS_MAX) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
