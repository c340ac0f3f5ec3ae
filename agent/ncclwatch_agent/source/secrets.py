"""Cuts the texts out of statements that speak of a secret, however many lines they take."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ncclwatch.contract.words.masking import CUT, names_secret, without_comment

# Of one line: its first byte, the byte after its last one (None: the rest of the line), whether the text begins there.
# ast counts columns in bytes of UTF-8.
_Cut = tuple[int, "int | None", bool]


def without_secrets(lines: Sequence[str], tree: ast.Module) -> tuple[str, ...]:
    """Return the lines of a source file; the texts in quotes and comments of a statement that names a secret are cut.

    A line of its own does not show that: in `login(` with the token on the next line, or in a text of several lines.
    Of a compound statement (`if`, `with`, `def`) its head is one statement, and each one under it another.
    """
    heads = [(node, _head(node)) for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    secret = [(node, head) for node, head in heads if names_secret("\n".join(lines[head.start : head.stop]))]
    cuts: defaultdict[int, list[_Cut]] = defaultdict(list)
    for node, _ in secret:
        for text in _texts(node):
            for number, cut in _cuts(text):
                cuts[number].append(cut)
    shown = [_without(line, cuts.get(number, ())) for number, line in enumerate(lines)]
    for number in {number for _, head in secret for number in head if number < len(shown)}:
        shown[number] = without_comment(shown[number])
    return tuple(shown)


def _head(statement: ast.stmt) -> range:
    """Return the places of its lines: without the statements under it, with the decorators above it."""
    first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
    last = statement.end_lineno or statement.lineno
    if isinstance(statement, ast.Match):
        last = statement.subject.end_lineno or statement.lineno
    elif body := getattr(statement, "body", None):
        last = max(statement.lineno, body[0].lineno - 1)
    return range(first - 1, last)


def _texts(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the texts of a statement's own expressions."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield from _texts(child)


def _cuts(text: ast.expr) -> Iterator[tuple[int, _Cut]]:
    """Yield the places of its lines, and what of each is to be cut."""
    first, last = text.lineno - 1, (text.end_lineno or text.lineno) - 1
    for number in range(first, last + 1):
        begins, ends = number == first, number == last
        yield number, (text.col_offset if begins else 0, text.end_col_offset if ends else None, begins)


def _without(line: str, cuts: Sequence[_Cut]) -> str:
    """Return a line without its texts; their quotes stay."""
    if not cuts:
        return line
    data = line.encode()
    kept: list[bytes] = []
    done = 0
    for start, end, begins in sorted(cuts, key=lambda cut: cut[0]):
        opening = data[start : start + 4].lstrip(b"rRbBfFuU")[:1] if begins else b""
        closing = data[end - 1 : end] if end is not None else b""
        kept += [data[done:start], opening, CUT.encode(), closing]
        done = len(data) if end is None else end
    return b"".join((*kept, data[done:])).decode(errors="replace")
