"""Finds the calls of a function in its file, by what the name before the dot is, and not by the function's name alone.

`torch.save(...)` is no call of a method `save` of a class in the same file, nor is `optimizer.step()` one of
`Trainer.step`. What a name holds is read from imports, from assignments of `Class(...)`, and from annotations.
"""

import ast
from typing import NamedTuple

from ncclwatch_agent.source.rank_words import dotted

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_OWN = ("self", "cls")
_OTHER = ""  # instead of the name of a class: something else
_BASES_MAX = 8


class Calls(NamedTuple):
    """Calls of a function: those that are certainly its own, and those that may be."""

    certain: tuple[ast.Call, ...]
    possible: tuple[ast.Call, ...]


class Callers:
    """Knows the calls, classes and imports of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._imported: set[str] = set()
        self._owners: dict[int, ast.ClassDef | None] = {}
        self._functions: dict[str, list[_Function]] = {}
        self._held: dict[str, set[str]] = {}
        self._calls: dict[str, list[ast.Call]] = {}
        self._inside: dict[int, ast.ClassDef | None] = {}  # of each call
        self._classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        self._read(tree)

    def of(self, function: _Function) -> Calls:
        """Return the calls of a function."""
        certain, possible = [], []
        for call in self._calls.get(function.name, []):
            answer = self._calls_it(call, function)
            if answer is None:
                possible.append(call)
            elif answer:
                certain.append(call)
        return Calls(tuple(certain), tuple(possible))

    def function_of(self, call: ast.Call) -> _Function | None:
        """Return the function of this file that a call may call, None if it certainly calls another one."""
        functions = self._functions.get(_called(call), [])
        return next((each for each in functions if self._calls_it(call, each) is not False), None)

    def _read(self, tree: ast.Module) -> None:
        pending: list[tuple[ast.AST, ast.ClassDef | None]] = [(tree, None)]
        while pending:
            node, inside = pending.pop()
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._imported |= {(name.asname or name.name).partition(".")[0] for name in node.names}
            elif isinstance(node, ast.Call):
                self._calls.setdefault(_called(node), []).append(node)
                self._inside[id(node)] = inside
            elif isinstance(node, _Function):
                self._owners[id(node)] = None
                self._functions.setdefault(node.name, []).append(node)
            self._hold(node)
            within = node if isinstance(node, ast.ClassDef) else inside
            pending += [(child, within) for child in reversed(list(ast.iter_child_nodes(node)))]
        for owner in self._classes.values():
            self._owners |= {id(each): owner for each in owner.body if isinstance(each, _Function)}

    def _hold(self, node: ast.AST) -> None:
        """Note what names hold after an assignment, as an argument with a type, or in a `with`."""
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            pairs = [(node.target, node.annotation)]
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            pairs = [(node.optional_vars, node.context_expr)]
        elif isinstance(node, ast.arg) and node.annotation is not None:
            self._held.setdefault(node.arg, set()).add(self._class_of(node.annotation))
        for target, value in pairs:
            if dotted(target) and value is not None:
                self._held.setdefault(dotted(target), set()).add(self._class_of(value))

    def _class_of(self, value: ast.expr) -> str:
        """Return the class of this file that an expression makes or names, "" for anything else."""
        made = value.func if isinstance(value, ast.Call) else value
        name = made.value if isinstance(made, ast.Constant) else dotted(made)
        return name if isinstance(name, str) and name in self._classes else _OTHER

    def _calls_it(self, call: ast.Call, function: _Function) -> bool | None:
        """Say whether a call of that name is one of a function; None if nobody can tell."""
        owner, inside = self._owners.get(id(function)), self._inside.get(id(call))
        if isinstance(call.func, ast.Name):
            return owner is None and call.func.id not in self._imported
        if not isinstance(call.func, ast.Attribute) or owner is None:
            return False
        return self._on(call.func.value, inside, owner, function.name)

    def _on(self, base: ast.expr, inside: ast.ClassDef | None, owner: ast.ClassDef, name: str) -> bool | None:
        """Say whether the method `name` of what stands before the dot is that of a class."""
        if isinstance(base, ast.Call):
            if dotted(base.func) == "super":
                bases = inside.bases if inside is not None else []
                return any(self._definer(dotted(each), name) is owner for each in bases)
            made = self._class_of(base)
            return self._definer(made, name) is owner if made else None
        holder = dotted(base)
        if holder in _OWN:
            return inside is not None and self._definer(inside.name, name) is owner
        held = self._held.get(holder)
        if held is None:
            return False if holder.partition(".")[0] in self._imported else None
        kinds = {self._definer(each, name) is owner for each in held}
        return kinds.pop() if len(kinds) == 1 else None

    def _definer(self, kind: str, name: str) -> ast.ClassDef | None:
        """Return the class of this file whose method `name` an object of a class has, None if it is none of these."""
        pending = [kind]
        for _ in range(_BASES_MAX):
            node = self._classes.get(pending.pop(0)) if pending else None
            if node is None:
                continue
            if any(isinstance(each, _Function) and each.name == name for each in node.body):
                return node
            pending += [dotted(base) for base in node.bases]
        return None


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func).rpartition(".")[2]
