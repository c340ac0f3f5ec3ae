"""Lists the small mistakes that can be put into a module: each comparison negated, each bound moved by one."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_SHIFTED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake: the whole text of the module with it, and what it is, for people.

    `bound`: a limit that is off by one, which many a test may leave open; otherwise a test of a value is reversed.
    """

    line: int
    bound: bool
    was: str
    now: str
    text: str


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every mutant of a module, in the order of its lines."""
    found = [*_comparisons(ast.parse(text)), *_bounds(ast.parse(text))]
    yield from sorted(found, key=lambda mutant: mutant.line)


def _comparisons(tree: ast.Module) -> Iterator[Mutant]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    for node in nodes:
        for at, op in enumerate(node.ops):
            for table in (_NEGATED, _SHIFTED):
                other = table.get(type(op))
                if other is None:
                    continue
                was = ast.unparse(node)
                node.ops[at] = other()
                now, text = ast.unparse(node), ast.unparse(tree)
                yield Mutant(line=node.lineno, bound=table is _SHIFTED, was=was, now=now, text=text)
                node.ops[at] = op
        for number in [side for side in (node.left, *node.comparators) if _is_number(side)]:
            yield from _moved(tree, node, number)


def _bounds(tree: ast.Module) -> Iterator[Mutant]:
    """Yield the constants of a module moved by one: seconds, counts and shares of its rules."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _is_number(statement.value):
            yield from _moved(tree, statement, statement.value)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _moved(tree: ast.Module, shown: ast.AST, number: ast.AST) -> Iterator[Mutant]:
    assert isinstance(number, ast.Constant)
    value = number.value
    assert isinstance(value, int | float)
    was = ast.unparse(shown)
    for step in (1, -1):
        # A share between 0 and 1 has no next one: half and half again is what a slip of the pen would be.
        number.value = value * (1.5 if step > 0 else 0.5) if 0 < value < 1 else value + step
        now, text = ast.unparse(copy.deepcopy(shown)), ast.unparse(tree)
        yield Mutant(line=getattr(shown, "lineno", 0), bound=True, was=was, now=now, text=text)
    number.value = value
