"""Nothing reaches a terminal, a log or a page but through the writers that escape it (`contract.words.printable`)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSOLE = "ncclwatch/contract/words/console.py"
TABLES = "ncclwatch/cli/output/terminal.py"
AGENT_LOG = "agent/ncclwatch_agent/log.py"
SERVER_LOG = "server/ncclwatch_server/runtime/logs.py"
REPORT, PAGES = "ncclwatch/cli/output/report_html.py", "server/ncclwatch_server/ui/render.py"
TERMINAL = "agent/ncclwatch_agent/process/job_terminal.py"

# What writes for others to read, and the modules that may call it.
CALLS = {
    "print": set(),
    "click.echo": set(),
    "click.secho": set(),
    "Console": set(),
    "EscapingConsole": {TABLES},
    "logging.StreamHandler": {AGENT_LOG, SERVER_LOG},
    "logging.FileHandler": set(),
    "logging.Formatter": set(),
    "logging.basicConfig": {SERVER_LOG},
    "Environment": {REPORT, PAGES},
    # A descriptor: the agent's log, the job's terminal, and a port for whoever started a server.
    "os.write": {AGENT_LOG, TERMINAL, "server/ncclwatch_server/serving/uvicorn_server.py"},
}
# Standard output and error themselves: asked whether they are terminals anywhere, used only here.
STREAMS = {
    CONSOLE,
    TABLES,
    AGENT_LOG,  # the stream of a handler that formats
    "agent/ncclwatch_agent/gpu/nvml.py",  # JSON to the agent that started it
    "ncclwatch/inject/sitecustomize.py",  # ncclwatch may be missing there: it writes ASCII
}
ASKED = {"isatty", "flush", "fileno"}
PLACES = ("ncclwatch", "agent", "server")
MODULES = sorted(path.relative_to(ROOT) for place in PLACES for path in (ROOT / place).rglob("*.py"))


def ways_out(source: str) -> Iterator[tuple[str, int]]:
    """Yield the calls and streams of a module through which text may leave it, with their lines."""
    tree = ast.parse(source)
    asked = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in ASKED
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS:
                yield name, node.lineno
        elif isinstance(node, ast.Attribute) and id(node) not in asked:
            name = ast.unparse(node)
            if name in ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"):
                yield name, node.lineno


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_text_leaves_only_through_the_writers_that_escape_it(module: Path) -> None:
    found = [
        f"{module}:{line}: {name}"
        for name, line in ways_out((ROOT / module).read_text(encoding="utf-8"))
        if str(module) not in (STREAMS if name.startswith("sys.") else CALLS[name])
    ]
    assert not found, "write with ncclwatch.contract.words.console"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("print(x)", "print"), ("click.echo(x)", "click.echo"), ("sys.stderr.write(x)", "sys.stderr"),
        ("f(sys.stdout)", "sys.stdout"), ("os.write(2, x)", "os.write"), ("Console().print(x)", "Console"),
        ("h = logging.StreamHandler()", "logging.StreamHandler"),
    ],
)  # fmt: skip
def test_a_way_around_them_is_found(source: str, name: str) -> None:
    assert [each for each, _ in ways_out(source)] == [name]


def test_whether_a_terminal_is_there_may_be_asked() -> None:
    assert not list(ways_out("sys.stderr.isatty(); sys.stdout.flush()"))
