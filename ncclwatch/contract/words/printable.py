"""Escapes text that comes from a process, at the place where it leaves the product.

Names of jobs, threads, groups, files and functions, exceptions, log lines and source lines are kept as they are inside:
a file is opened by its name, a job is found by it. They come in through dozens of readers and go out through a few
writers, so it is the writers that escape, each in one place and whatever it is given:

- terminals: `contract.words.console`, one line at a time; tables of rich: `cli.output.terminal`
- logs: `contract.words.log_lines`
- JSON of commands, of the API and of webhooks: `json_text` and `json_bytes` here; /metrics: `label_bytes`
- pages and HTML reports: the `finalize` of their jinja environments
- Markdown: `prose` and `fence` of `cli.output.report_markdown`
- alerts: `clean` of `notify.message`, before each form escapes what its receiver would read
- text of an incident: `plain` of `incidents.terminal_text`, which knows where its own lines end

tests/unit/test_one_writer.py fails where another module writes to a terminal or formats a log or a page by itself.
"""

import re

_UNPRINTED = re.compile(r"[^\x20-\x7e\n]+")  # runs, most of which are words of other scripts
_UNPRINTED_BYTE = re.compile(rb"[^\x20-\x7e\n]")
_DELETE = b"\x7f"


def harmless(text: str, *, keep_lines: bool = False) -> str:
    """Return text that a terminal shows and does not obey: control and formatting characters become \\x1b or \\u202e.

    C0, C1 and DEL move cursors and write clipboards; characters of direction let a line read as another; lone
    surrogates cannot be written at all. What is left are the printable characters of all scripts, and spaces.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (keep_lines and c == "\n") else _shown(c) for c in text)


def one_line(text: str) -> str:
    """Return text for a table, a page or a ticket: white space of any kind is a space, all else is `harmless`."""
    return text if text.isprintable() else harmless("".join(" " if c.isspace() else c for c in text))


def json_text(data: bytes, *, indent: int = 2) -> str:
    """Return JSON that means the same and is safe to show; over several lines if it is indented."""
    import msgspec

    return _UNPRINTED.sub(_escaped, msgspec.json.format(data, indent=indent).decode() if indent else data.decode())


def json_bytes(data: bytes) -> bytes:
    """Return JSON of our own encoder that means the same and is safe to show, as it is where nothing has to change."""
    # The encoder has escaped what is below a space; nearly all answers are ASCII.
    if (data.isascii() and _DELETE not in data) or data.decode().isprintable():
        return data
    return json_text(data, indent=0).encode()


def label_bytes(data: bytes) -> bytes:
    """Return Prometheus' text in which the values of labels are safe to show: a backslash is written twice there."""
    if data.isascii() and _UNPRINTED_BYTE.search(data) is None:
        return data
    return _UNPRINTED.sub(lambda run: harmless(run[0]).replace("\\", r"\\"), data.decode()).encode()


def _shown(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else "".join(map(_json_escape, found[0]))


def _json_escape(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
