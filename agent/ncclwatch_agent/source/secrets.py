"""Cuts the texts out of statements that speak of a secret, however many lines they take."""

import ast
from collections.abc import Iterator, Sequence

from ncclwatch.contract.words.masking import CUT, names_secret, without_comment


def without_secrets(lines: Sequence[str], tree: ast.Module) -> tuple[str, ...]:
    """Return the lines of a source file; the texts in quotes and comments of a statement that names a secret are cut.

    A line of its own does not show that: in `login(` with the token on the next line, or in a text of several lines.
    Of a compound statement (`if`, `with`, `def`) its head is one statement, and each one under it another.
    """
    shown = list(lines)
    heads = [(node, _head(node)) for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    secret = [(node, head) for node, head in heads if names_secret("\n".join(lines[head.start : head.stop]))]
    texts = [text for node, _ in secret for text in _texts(node)]
    for text in sorted(texts, key=lambda each: (each.lineno, each.col_offset), reverse=True):
        _cut(shown, text)  # from the last one: a cut moves what is right of it
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


def _cut(lines: list[str], text: ast.expr) -> None:
    first, last = text.lineno - 1, (text.end_lineno or text.lineno) - 1
    if last >= len(lines):
        return
    # ast counts columns in bytes of UTF-8.
    before = lines[first].encode()[: text.col_offset].decode(errors="replace")
    after = lines[last].encode()[text.end_col_offset or 0 :].decode(errors="replace")
    quote = lines[last].encode()[: text.end_col_offset or 0].decode(errors="replace")[-1:]
    if first == last:
        lines[first] = f"{before}{quote}{CUT}{quote}{after}"
        return
    lines[first] = f"{before}{quote}{CUT}"
    lines[first + 1 : last] = [CUT] * (last - first - 1)
    lines[last] = f"{CUT}{quote}{after}"
