"""Each thread, task and process that the code begins has a line in docs/watched-parts.md that says what watches it."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("ncclwatch", "agent/ncclwatch_agent", "server/ncclwatch_server")
# What begins something that runs beside its caller, by the last part of its name.
BEGINNINGS = frozenset(
    "Thread Timer start_new_thread ThreadPoolExecutor ProcessPoolExecutor run_in_executor to_thread create_task "
    "ensure_future TaskGroup Popen create_subprocess_exec create_subprocess_shell posix_spawn posix_spawnp "
    "fork forkpty popen system spawnv spawnve".split()
)
RUNS = frozenset("run call check_call check_output getoutput getstatusoutput".split())  # of `subprocess`
LINE = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
FORKED = frozenset({"Process", "Pool"})  # of `multiprocessing`; psutil has one as well
OTHERS = frozenset({"platform.system"})


class Beginnings(ast.NodeVisitor):
    """Finds the calls that begin something, by the function that they are in."""

    def __init__(self, names: frozenset[str]) -> None:
        self.found: list[tuple[str, str]] = []
        self._names = names
        self._scope: list[str] = []

    def _inside(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _inside  # type: ignore[assignment]

    def visit_Call(self, node: ast.Call) -> None:
        """Note a call that begins something."""
        whole = ast.unparse(node.func)
        name = whole.rpartition(".")[2]
        if (name in self._names and whole not in OTHERS) or (whole.startswith("subprocess.") and name in RUNS):
            self.found.append((".".join(self._scope), name))
        self.generic_visit(node)


def beginnings(text: str) -> list[tuple[str, str]]:
    """Return function and kind of each."""
    visitor = Beginnings(BEGINNINGS | FORKED if "import multiprocessing" in text else BEGINNINGS)
    visitor.visit(ast.parse(text))
    return visitor.found


def in_the_code() -> Iterator[tuple[str, str]]:
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*.py")):
            for scope, kind in beginnings(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(ROOT)}: {scope}", kind


def in_the_document() -> list[tuple[str, str]]:
    text = (ROOT / "docs/watched-parts.md").read_text(encoding="utf-8")
    return [(where, kind) for where, kinds, _, _ in LINE.findall(text) for kind in kinds.split(", ")]


def test_each_thread_task_and_process_is_listed_with_what_watches_it() -> None:
    code, document = Counter(in_the_code()), Counter(in_the_document())
    assert sorted((code - document).elements()) == [], "say in docs/watched-parts.md what watches these"
    assert sorted((document - code).elements()) == [], "these are not in the code any more"


def test_each_line_says_who_watches_and_what_happens() -> None:
    text = (ROOT / "docs/watched-parts.md").read_text(encoding="utf-8")
    lines = LINE.findall(text)
    assert len(lines) > 50
    assert [where for where, _, what, watched in lines if len(what.strip()) < 5 or len(watched.strip()) < 5] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f():\n    threading.Thread(target=g).start()", [("f", "Thread")]),
        ("class A:\n    async def f(self):\n        asyncio.create_task(g())", [("A.f", "create_task")]),
        ("async def f():\n    async with TaskGroup() as group:\n        group.create_task(g())",
         [("f", "TaskGroup"), ("f", "create_task")]),
        ("import multiprocessing\nmultiprocessing.Process(target=f)", [("", "Process")]),
        ("import psutil\npsutil.Process(1)", []),
        ("from subprocess import Popen\nPopen(['x'])", [("", "Popen")]),
        ("subprocess.run(['x'])\nasyncio.run(main())\nplatform.system()", [("", "run")]),
    ],
)  # fmt: skip
def test_what_begins_something_is_found(text: str, found: list[tuple[str, str]]) -> None:
    assert beginnings(text) == found
