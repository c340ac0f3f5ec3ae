"""Options of the test suite, and the databases that its stores are tried on."""

import gc
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from tests import live
from tests.postgres import Postgres, binaries

# The same examples each time, however slow the machine is; `make fresh` draws others.
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.register_profile("fresh", deadline=None, database=None, print_blob=True)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --rewrite, which writes what is seen now into the golden scenarios and the table of coverage."""
    parser.addoption("--rewrite", action="store_true", help="rewrite golden files")
    parser.addoption("--fuzz-inputs", type=int, default=200, help="how many random inputs each surface is given")
    parser.addoption("--search-share", type=float, default=1.0, help="how much of each search for a mistake is done")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let temporary directories lie in memory: rings lie nowhere else, and ranks refuse other places."""
    config.pluginmanager.register(live, "live")
    if config.option.basetemp is None:
        config.option.basetemp = tempfile.mkdtemp(prefix="ncclwatch-tests-", dir="/dev/shm")
        config.add_cleanup(partial(shutil.rmtree, config.option.basetemp, ignore_errors=True))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Let hypothesis try its share of examples, where a test does not say how many."""
    usual = settings.default
    examples = math.ceil(usual.max_examples * session.config.getoption("--search-share"))
    settings.register_profile("share", usual, max_examples=examples)
    settings.load_profile("share")


@pytest.fixture(scope="session")
def share_of(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """Return how many of so many trials are to be made: `make unit` makes a part of them, CI makes all."""
    share: float = request.config.getoption("--search-share")
    return lambda trials: math.ceil(trials * share)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what stays to the end: modules, and thousands of tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files begin first that may take longest: one that begins last has a core for itself, and others idle."""
    longest_s: dict[Path, float] = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        longest_s[item.path] = max(longest_s.get(item.path, 0.0), float(limit.args[0]) if limit else 0.0)
    items.sort(key=lambda item: -longest_s[item.path])


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of our own, for all tests of this process."""
    pytest.importorskip("psycopg")
    if binaries() is None:
        if os.environ.get("CI"):
            pytest.fail("there is no PostgreSQL here, and CI must try stores on it: apt-get install postgresql")
        pytest.skip("there is no PostgreSQL here")
    with Postgres() as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'incidents.db'}"
    cluster: Postgres = request.getfixturevalue("postgres")
    return cluster.new_database()
