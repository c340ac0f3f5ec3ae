"""Options of the test suite, and the databases that its stores are tried on."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import Postgres, binaries


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --rewrite, which writes what is seen now into the golden scenarios and the table of coverage."""
    parser.addoption("--rewrite", action="store_true", help="rewrite golden files")


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
