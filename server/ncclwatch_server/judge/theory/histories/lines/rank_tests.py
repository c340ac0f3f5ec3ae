"""Says whether a test of the rank keeps members of a group apart, as far as its words tell.

Who uses a group of some ranks calls it under a test that all of them pass: `if rank < 2` round a call of ranks 0 and 1.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from itertools import product

BESIDES_MAX = 6  # questions besides those of the rank, each with two answers
_AROUND = re.compile(
    r"(?P<other>else of )?(?:if |while )?(?P<test>.*?)(?P<way_out>(?P<from_other>, else)?: *\w[\w.]*)?:?"
    r"(?: \(line \d+, where .*\))?"
)
_RANK_NAMES = frozenset(("rank", "RANK", "global_rank", "my_rank"))
_HOLDS_RANK = re.compile(r"rank|main|master|leader|first|last|local|stage|process_index", re.IGNORECASE)
_MATH = {ast.Add: int.__add__, ast.Sub: int.__sub__, ast.FloorDiv: int.__floordiv__, ast.Mod: int.__mod__}


class _UnknownError(Exception):
    """A part of a test whose value nobody can tell."""


def keeps_none_apart(test: str, caller: int, ranks: Iterable[int]) -> bool:
    """Say whether a test of the rank that `caller` has passed has one answer for all these ranks, for certain.

    What else it asks, as of the number of a step, has one answer for all of them as well.
    """
    words, tree = _parsed(test)
    if words is None or tree is None:
        return False
    asked = {ast.unparse(part): _asks_of_rank(part) for part in _questions(tree)}
    besides = [part for part, of_rank in asked.items() if not of_rank]
    if len(besides) == len(asked) or len(besides) > BESIDES_MAX:
        return False
    leaves = bool(words["way_out"]) and not words["from_other"]  # who passes the test does not come to the call
    kept_out = leaves is (words["other"] is None)
    try:
        answers = [dict(zip(besides, each, strict=True)) for each in product((False, True), repeat=len(besides))]
        # What has let the caller come. A rank that its own test keeps out is counted in another way, as in its group.
        may_be = [each for each in answers if _outcome(tree, caller, each) is not kept_out]
        return bool(may_be) and all(_outcome(tree, rank, each) is not kept_out for rank in ranks for each in may_be)
    except (_UnknownError, ArithmeticError, TypeError):
        return False


def leads_past(test: str) -> bool:
    """Say whether a test lies before the call, not round it, and leads past it: "if rank == 1: break"."""
    words = _AROUND.fullmatch(test)
    return words is not None and bool(words["way_out"])


def asks_for_several(test: str) -> bool:
    """Say whether a test of the rank may be meant to be passed by several ranks, as far as its words tell.

    It asks whether the rank is among some, below a limit or of a class; one that asks for a single rank does not.
    """
    tree = _parsed(test)[1]
    compared = [part for part in _questions(tree) if isinstance(part, ast.Compare)] if tree is not None else []
    return any(_is_open(part) for part in compared if _asks_of_rank(part))


def _is_open(question: ast.Compare) -> bool:
    try:
        _answer(question, 0)
    except (_UnknownError, ArithmeticError, TypeError):
        single = all(isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot) for op in question.ops)
        sides = (question.left, *question.comparators)
        return not single or any(isinstance(side, ast.BinOp) and _asks_of_rank(side) for side in sides)
    return False


def _parsed(test: str) -> tuple[re.Match[str] | None, ast.expr | None]:
    words = _AROUND.fullmatch(test)
    try:
        return words, ast.parse(words["test"], mode="eval").body if words is not None else None
    except (SyntaxError, ValueError):
        return None, None


def _asks_of_rank(node: ast.expr) -> bool:
    return bool(_HOLDS_RANK.search(ast.unparse(node)))


def _outcome(node: ast.expr, rank: int, besides: Mapping[str, bool]) -> bool:
    """Return what a test says of a rank, given the answers to what it asks besides."""
    if isinstance(node, ast.BoolOp):
        found = [_outcome(value, rank, besides) for value in node.values]
        return any(found) if isinstance(node.op, ast.Or) else all(found)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _outcome(node.operand, rank, besides)
    known = besides.get(ast.unparse(node))
    return _answer(node, rank) if known is None else known


def _questions(node: ast.expr) -> Iterable[ast.expr]:
    """Return the parts of a test that are joined by `and`, `or` and `not`."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _questions(value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _questions(node.operand)
    else:
        yield node


def _answer(node: ast.expr, rank: int) -> bool:
    if not isinstance(node, ast.Compare):
        return bool(_value(node, rank))
    values = [_value(each, rank) for each in (node.left, *node.comparators)]
    return all(_holds(op, one, other) for op, one, other in zip(node.ops, values, values[1:], strict=False))


def _holds(op: ast.cmpop, one: object, other: object) -> bool:
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(other, tuple | range):
            raise _UnknownError
        return (one in other) is isinstance(op, ast.In)
    if not (isinstance(one, int) and isinstance(other, int)):
        raise _UnknownError
    if isinstance(op, ast.Eq | ast.NotEq):
        return (one == other) is isinstance(op, ast.Eq)
    if isinstance(op, ast.Lt | ast.GtE):
        return (one < other) is isinstance(op, ast.Lt)
    if isinstance(op, ast.Gt | ast.LtE):
        return (one > other) is isinstance(op, ast.Gt)
    raise _UnknownError


def _value(node: ast.expr, rank: int) -> int | range | tuple[object, ...]:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return tuple(_value(each, rank) for each in node.elts)
    if isinstance(node, ast.BinOp) and type(node.op) in _MATH:
        one, other = _value(node.left, rank), _value(node.right, rank)
        if isinstance(one, int) and isinstance(other, int):
            return _MATH[type(node.op)](one, other)
    if _is_rank(node):
        return rank
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and not node.keywords:
        ends = [_value(each, rank) for each in node.args]
        return range(*(end for end in ends if isinstance(end, int)))
    raise _UnknownError


def _is_rank(node: ast.expr) -> bool:
    """Say whether an expression is the rank in the job, by its name."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name == "get_rank" and not node.args and not node.keywords
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) in _RANK_NAMES
