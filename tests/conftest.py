"""Options of the test suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --rewrite, which writes what is seen now into the golden scenarios and the table of coverage."""
    parser.addoption("--rewrite", action="store_true", help="rewrite golden files")
