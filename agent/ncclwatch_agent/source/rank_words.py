"""Says whether an expression of the user's source depends on the rank.

Judged by words: `rank`, `is_main_process()`, `os.environ["RANK"]`, and names that were assigned
from such. Asking whether training is distributed at all (`rank != -1`, `rank is None`,
`"RANK" in os.environ`) gives every rank the same answer and does not count.
"""

import ast
import re
from collections.abc import Iterator


def words(text: str) -> frozenset[str]:
    """Return a set of words."""
    return frozenset(text.split())


_ENVIRON = words(
    """RANK LOCAL_RANK GLOBAL_RANK NODE_RANK GROUP_RANK SLURM_PROCID SLURM_LOCALID SLURM_NODEID PMI_RANK PMIX_RANK
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_RANK"""
)
_RANK = re.compile(r"(^|_)[gl]?rank(s|id)?\d*(_|$)")
_FIRST = re.compile(
    r"main_process|process_zero|global_zero|local_zero|rank_?zero|is_main$|is_master|master_process|master_only|^master$"
    r"|is_chief|is_coordinator|is_primary|is_leader|process_index|process_id$|proc_?id$|(first|last)_stage"
)
_FALSE_FRIENDS = re.compile(
    r"(lora|matrix|low|page|tensor|full)_?rank|rank_(loss|by|order|score|feature)|ranking|reranker"
)
_CASTS = frozenset(("int", "bool", "str"))
_CONTAINERS = (
    ast.List,
    ast.Tuple,
    ast.Dict,
    ast.Set,
    ast.ListComp,
    ast.JoinedStr,
)  # as long as a rank says, and no rank


def is_rank_name(identifier: str) -> bool:
    """Whether a name speaks of the rank: rank, local_rank, isMainProcess, rank_zero_only..."""
    snake = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", identifier).lower()
    if _FALSE_FRIENDS.search(snake):
        return False
    return bool(_RANK.search(snake) or _FIRST.search(snake))


def dotted(node: ast.expr) -> str:
    """Return a plain name or a chain of attributes as text, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def mentions(node: ast.AST, known: frozenset[str]) -> bool:
    """Whether a test depends on the rank anywhere inside; `known` are names that were found to hold it."""
    if isinstance(node, ast.Compare) and _asks_whether_distributed(node, known):
        return False
    if isinstance(node, ast.expr) and holds_rank(node, known):
        return True
    return any(mentions(child, known) for child in ast.iter_child_nodes(node))


def holds_rank(node: ast.expr, known: frozenset[str]) -> bool:
    """Whether the value of an expression is a rank, is computed from one, or is a yes or no about one."""
    if isinstance(node, ast.Name):
        return is_rank_name(node.id) or node.id in known
    if isinstance(node, ast.Attribute):
        return is_rank_name(node.attr) or dotted(node) in known
    if isinstance(node, ast.Call):
        return _call_holds_rank(node, known)
    if isinstance(node, ast.Subscript):
        return _is_environ_key(node.slice)
    if isinstance(node, ast.Compare):
        return not _asks_whether_distributed(node, known) and any(
            holds_rank(side, known) for side in (node.left, *node.comparators)
        )
    if isinstance(node, ast.IfExp) and not (_is_fixed(node.body, known) and _is_fixed(node.orelse, known)):
        return False
    return any(holds_rank(part, known) for part in _parts(node))


def _is_fixed(node: ast.expr, known: frozenset[str]) -> bool:
    """Whether a value is the same at any time: a rank that chooses between two of these decides all."""
    return not any(isinstance(each, ast.Name) for each in ast.walk(node)) or holds_rank(node, known)


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the operands through which a rank passes on to the result."""
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
        return [] if any(isinstance(part, _CONTAINERS) for part in parts) else parts
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.IfExp):
        return [node.test, node.body, node.orelse]
    if isinstance(node, ast.NamedExpr):
        return [node.value]
    return []


def _call_holds_rank(node: ast.Call, known: frozenset[str]) -> bool:
    name = dotted(node.func)
    last = name.rpartition(".")[2]
    if last in _CASTS:
        return any(holds_rank(argument, known) for argument in node.args)
    if last in ("get", "getenv") and node.args:
        return _is_environ_key(node.args[0])
    return bool(last) and (is_rank_name(last) or name + "()" in known)


def _is_environ_key(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in _ENVIRON


def _asks_whether_distributed(node: ast.Compare, known: frozenset[str]) -> bool:
    """Whether this is `rank != -1`, `rank is None`, `rank >= 0` or `"RANK" in os.environ`."""
    if len(node.ops) != 1:
        return False
    left, operator, right = node.left, node.ops[0], node.comparators[0]
    if isinstance(operator, ast.In | ast.NotIn) and _is_environ_key(left):
        return True
    if not holds_rank(left, known):
        return False
    value = _number(right)
    if isinstance(right, ast.Constant) and right.value is None:
        return True
    return value == -1 or (value == 0 and isinstance(operator, ast.GtE | ast.Lt))


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def names_holding_rank(scopes: list[ast.AST], classes: list[ast.ClassDef]) -> frozenset[str]:
    """Return the names assigned from a rank in these scopes, and `self.` names from these classes.

    A function that returns a yes or no about the rank is known as "name()".
    """
    pairs = [pair for scope in scopes for pair in _assigned(scope, nested=False)]
    for owner in classes:
        pairs += [pair for pair in _assigned(owner, nested=True) if "." in pair[0]]
    known: frozenset[str] = frozenset()
    for _ in range(4):  # an assignment may use a name assigned above it
        found = known | {name for name, value in pairs if holds_rank(value, known)}
        if found == known:
            break
        known = found
    return known


def _assigned(scope: ast.AST, *, nested: bool) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, value) of what is assigned in a scope, and ("name()", value) of its one-line functions."""
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _returned(node)
            if not nested:
                continue
        pending += ast.iter_child_nodes(node)
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            targets, value = [node.target], node.value
        for target in targets:
            if value is not None:
                yield from _pairs(target, value)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, its_value in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, its_value)
    elif dotted(target):
        yield dotted(target), value


def _returned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return) and node.body[-1].value:
        value = node.body[-1].value
        yield f"{node.name}()", value
        yield f"self.{node.name}()", value
        if any(dotted(decorator).endswith("property") for decorator in node.decorator_list):
            yield f"self.{node.name}", value
