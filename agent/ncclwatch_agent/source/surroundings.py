"""Finds what encloses a line of the user's source: the test of the rank, the loop, the handler."""

import ast
from dataclasses import dataclass
from typing import NamedTuple

from ncclwatch.contract.words.masking import masked_line
from ncclwatch_agent.source.callers import Callers
from ncclwatch_agent.source.communication import Communication
from ncclwatch_agent.source.rank_words import dotted, mentions, names_holding_rank

CALLERS_DEPTH_MAX = 3  # calls followed outwards when the function itself has no test of the rank
CALLS_MAX = 8  # of one function, all of which have to lie under a test
ESCAPES_MAX = 8
TEXT_MAX = 200

_SAME_ON_ALL_RANKS = ("world_size", "is_initialized", "is_available", "WORLD_SIZE", "num_processes")

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Loop = ast.For | ast.AsyncFor | ast.While


class Step(NamedTuple):
    """One level of nesting: statement number `place` of the `field` block of `node` holds the line."""

    node: ast.AST
    field: str
    block: list[ast.stmt]
    place: int

    @property
    def statement(self) -> ast.stmt:
        """The statement that holds the line."""
        return self.block[self.place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A test of the rank that decides whether a line runs."""

    text: str
    line: int
    branch_ops: tuple[str, ...] = ()  # communication calls where the line lies
    other_branch_ops: tuple[str, ...] = ()  # and where it does not


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopNote:
    """The loop round a line."""

    head: str
    lines: tuple[int, int]
    escapes: tuple[str, ...]


def path_to(tree: ast.Module, line: int) -> list[Step]:
    """Return the nesting of a line, outermost first; empty if no statement holds it."""
    path: list[Step] = []
    node: ast.AST | None = tree
    while node is not None:
        step = _step_into(node, line)
        node = None
        if step is not None:
            path.append(step)
            node = step.statement
    return path


def _step_into(node: ast.AST, line: int) -> Step | None:
    for field, owner in _blocks(node):
        block: list[ast.stmt] = getattr(owner, field)
        for place, statement in enumerate(block):
            if _first_line(statement) <= line <= (statement.end_lineno or statement.lineno):
                return Step(owner, field, block, place)
    return None


def _blocks(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Return (field, owner) of every block of statements directly in a statement."""
    found: list[tuple[str, ast.AST]] = [
        (field, node) for field in ("body", "orelse", "finalbody") if isinstance(getattr(node, field, None), list)
    ]
    found += [("body", part) for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]
    return found


def _first_line(statement: ast.stmt) -> int:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)])
    return statement.lineno


class Surroundings:
    """Answers for one parsed file."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._callers = Callers(tree)
        self._communication = Communication(tree, self._callers)
        self._matches: dict[int, ast.Match] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Match):
                self._matches |= {id(case): node for case in node.cases}

    def condition(self, line: int, depth: int = 0) -> Condition | None:
        """Return the nearest test of the rank that decides whether this line runs.

        If its function has none, every call of that function in the file must lie under one.
        """
        path = path_to(self._tree, line)
        inner = _within_function(path)
        known = self._known(path)
        found = self._in_statement(path, known)
        for number in range(len(inner) - 1, -1, -1):
            found = found or self._guard(inner[number], known) or self._branch(inner, number, known)
        function = _function_of(path)
        if found is None and function is not None:
            found = self._decorator(function, known)
            if found is None and depth < CALLERS_DEPTH_MAX:
                found = self._at_callers(function, depth)
        return found

    def loop(self, line: int, depth: int = 0) -> LoopNote | None:
        """Return the nearest loop round this line; if its function has none, that round its only caller."""
        path = path_to(self._tree, line)
        for step in reversed(_within_function(path)):
            if isinstance(step.node, _Loop) and step.field == "body":
                return _loop_note(step.node)
        function = _function_of(path)
        if function is None or depth >= CALLERS_DEPTH_MAX:
            return None
        calls, others = self._callers.of(function)
        return self.loop(calls[0].lineno, depth + 1) if len(calls) == 1 and not others else None

    def outer_loop(self, line: int) -> LoopNote | None:
        """Return the loop round the nearest one, where both are in the function of this line."""
        path = _within_function(path_to(self._tree, line))
        loops = [step.node for step in reversed(path) if isinstance(step.node, _Loop) and step.field == "body"]
        return _loop_note(loops[1]) if len(loops) > 1 else None

    def early_exits(self, line: int) -> tuple[str, ...]:
        """Return the conditional returns above this line in its own function: by them a rank may never come here.

        Tests of whether there is anything distributed at all have the same answer on all ranks, and are left out.
        """
        found = [
            exit
            for step in _within_function(path_to(self._tree, line))
            for statement in step.block[: step.place]
            for exit in _escapes(statement, "", in_loop=False)
            if not any(word in exit for word in _SAME_ON_ALL_RANKS)
        ]
        return tuple(found[:ESCAPES_MAX])

    def rank_exit(self, line: int) -> str:
        """Return a return above this line in its own function that lies, with other tests, under a test of the rank.

        The ranks that pass that test may leave before this line, the others never do. "" if there is none.
        """
        path = path_to(self._tree, line)
        known = self._known(path)
        for step in _within_function(path):
            for statement in step.block[: step.place]:
                if isinstance(statement, ast.If) and mentions(statement.test, known):
                    for word, block in (("", statement.body), ("else of ", statement.orelse)):
                        exits = [exit for each in block for exit in _escapes(each, "", in_loop=False)]
                        if exits:
                            return f"{word}if {_text(statement.test)}: line {exits[0]}"
        return ""

    def handler(self, line: int) -> str:
        """Return the nearest `except` clause round this line, "" if there is none."""
        for step in reversed(_within_function(path_to(self._tree, line))):
            if isinstance(step.node, ast.ExceptHandler):
                return _handler_text(step.node)
        return ""

    def _known(self, path: list[Step]) -> frozenset[str]:
        scopes: list[ast.AST] = [self._tree]
        scopes += [step.statement for step in path if isinstance(step.statement, _Function)]
        classes = [step.statement for step in path if isinstance(step.statement, ast.ClassDef)]
        return names_holding_rank(scopes, classes)

    def _in_statement(self, path: list[Step], known: frozenset[str]) -> Condition | None:
        """Find `call() if rank == 0 else None` and `rank == 0 and call()` inside the statement itself."""
        if not path or _blocks(path[-1].statement):
            return None
        for node in ast.walk(path[-1].statement):
            if isinstance(node, ast.IfExp) and mentions(node.test, known):
                body, other = self._communication.calls([node.body]), self._communication.calls([node.orelse])
                if body:
                    return Condition(
                        text=f"if {_text(node.test)}", line=node.lineno, branch_ops=body, other_branch_ops=other
                    )
                if other:
                    text = f"else of if {_text(node.test)}"
                    return Condition(text=text, line=node.lineno, branch_ops=other, other_branch_ops=body)
            if isinstance(node, ast.BoolOp) and mentions(node.values[0], known):
                ops = self._communication.calls(node.values[1:])
                if ops:
                    negated = "not " if isinstance(node.op, ast.Or) else ""
                    text = f"if {negated}{_text(node.values[0])}"
                    return Condition(text=text, line=node.lineno, branch_ops=ops)
        return None

    def _guard(self, step: Step, known: frozenset[str]) -> Condition | None:
        """Find `if rank != 0: return` above the line in the same block."""
        for statement in reversed(step.block[: step.place]):
            if not isinstance(statement, ast.If) or not mentions(statement.test, known):
                continue
            rest = self._communication.calls(step.block[step.place :])
            for word, leaves in (("if " + _text(statement.test), statement.body), ("else", statement.orelse)):
                if leaves and (end := _end(leaves[-1])):
                    text = f"{word}: {end}" if word != "else" else f"if {_text(statement.test)}, else: {end}"
                    others = self._communication.calls(leaves)
                    return Condition(text=text, line=statement.lineno, branch_ops=rest, other_branch_ops=others)
        return None

    def _branch(self, path: list[Step], number: int, known: frozenset[str]) -> Condition | None:
        """Find the `if`, `while` or `case` whose block this is."""
        step = path[number]
        node = step.node
        if isinstance(node, ast.match_case):
            return self._case(node, known)
        if not isinstance(node, ast.If | ast.While) or not mentions(node.test, known):
            return None
        ops = self._communication.calls(step.block)
        if isinstance(node, ast.While):
            text = f"while {_text(node.test)}"
            return Condition(text=text, line=node.lineno, branch_ops=ops) if step.field == "body" else None
        others: list[ast.stmt] = node.orelse if step.field == "body" else node.body
        others = [*others, *_earlier_branches(path, number)]
        text = f"if {_text(node.test)}"
        return Condition(
            text=text if step.field == "body" else f"else of {text}",
            line=node.lineno,
            branch_ops=ops,
            other_branch_ops=self._communication.calls(others),
        )

    def _case(self, node: ast.match_case, known: frozenset[str]) -> Condition | None:
        match = self._matches[id(node)]
        if not mentions(match.subject, known):
            return None
        others = [statement for case in match.cases if case is not node for statement in case.body]
        return Condition(
            text=f"match {_text(match.subject)}: case {_text(node.pattern)}",
            line=node.pattern.lineno,
            branch_ops=self._communication.calls(node.body),
            other_branch_ops=self._communication.calls(others),
        )

    def _decorator(self, function: _Function, known: frozenset[str]) -> Condition | None:
        for decorator in function.decorator_list:
            name = decorator.func if isinstance(decorator, ast.Call) else decorator
            if mentions(name, known):
                ops = self._communication.calls(function.body)
                return Condition(text=f"@{_text(decorator)}", line=decorator.lineno, branch_ops=ops)
        return None

    def _at_callers(self, function: _Function, depth: int) -> Condition | None:
        certain, possible = self._callers.of(function)
        calls = (*certain, *possible)
        if not certain or len(calls) > CALLS_MAX:
            return None
        found = [(call.lineno, self.condition(call.lineno, depth + 1)) for call in calls]
        if any(condition is None for _, condition in found):
            return None
        line, condition = found[0]
        if condition is None:
            return None
        return Condition(
            text=f"{condition.text} (line {line}, where {function.name}() is called)",
            line=condition.line,
            branch_ops=condition.branch_ops,
            other_branch_ops=condition.other_branch_ops,
        )


def _function_of(path: list[Step]) -> _Function | None:
    """Return the innermost function whose body holds the line."""
    for step in reversed(path):
        if isinstance(step.node, _Function):
            return step.node
    return None


def _within_function(path: list[Step]) -> list[Step]:
    """Return the part of a nesting inside the innermost function."""
    for number in range(len(path) - 1, -1, -1):
        if isinstance(path[number].node, _Function):
            return path[number:]
    return path


def _earlier_branches(path: list[Step], number: int) -> list[ast.stmt]:
    """Return the blocks of the `if` and `elif` branches before the `elif` of this step."""
    found: list[ast.stmt] = []
    while number > 0:
        outer = path[number - 1]
        if not (isinstance(outer.node, ast.If) and outer.field == "orelse" and len(outer.block) == 1):
            break
        found += outer.node.body
        number -= 1
    return found


def _end(statement: ast.stmt) -> str:
    """Return how a block leaves, "" if it goes on to what follows."""
    if isinstance(statement, ast.Return | ast.Continue | ast.Break | ast.Raise):
        return type(statement).__name__.lower()
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = dotted(statement.value.func)
        return name if name in ("sys.exit", "exit", "quit", "os._exit") else ""
    return ""


def _loop_note(node: _Loop) -> LoopNote:
    if isinstance(node, ast.While):
        head = f"while {_text(node.test)}"
    else:
        target = _text(node.target)
        if isinstance(node.target, ast.Tuple):
            target = target.removeprefix("(").removesuffix(")")  # as people write it
        head = f"for {target} in {_text(node.iter)}"
    escapes = [text for statement in node.body for text in _escapes(statement, "", in_loop=True)]
    return LoopNote(
        head=head, lines=(node.lineno, node.end_lineno or node.lineno), escapes=tuple(escapes[:ESCAPES_MAX])
    )


def _escapes(node: ast.AST, reason: str, *, in_loop: bool) -> list[str]:
    """Return "line: text" of each conditional way out of an iteration. `in_loop` is false in a nested loop."""
    if isinstance(node, ast.Return) or (in_loop and isinstance(node, ast.Break | ast.Continue)):
        return [f"{node.lineno}: {reason}: {type(node).__name__.lower()}"] if reason else []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return []
    found: list[str] = []
    for field, owner in _blocks(node):
        why, inside = reason, in_loop
        if isinstance(owner, ast.If):
            why = f"if {_text(owner.test)}" if field == "body" else f"else of if {_text(owner.test)}"
        elif isinstance(owner, ast.ExceptHandler):
            why = _handler_text(owner)
        elif isinstance(owner, ast.match_case):
            why = f"case {_text(owner.pattern)}"
        elif isinstance(owner, _Loop):
            inside = in_loop and field == "orelse"
        for statement in getattr(owner, field):
            found += _escapes(statement, why, in_loop=inside)
    return found


def _handler_text(node: ast.ExceptHandler) -> str:
    caught = f" {_text(node.type)}" if node.type else ""
    return f"except{caught}" + (f" as {node.name}" if node.name else "")


def _text(node: ast.AST) -> str:
    # Masked before it is cut short: what is left of a text need not show that it is a secret.
    return masked_line(ast.unparse(node))[:TEXT_MAX]
