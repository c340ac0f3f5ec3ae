"""Options of the test suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --rewrite, which writes what the judge says now into the golden scenarios."""
    parser.addoption("--rewrite", action="store_true", help="rewrite the golden scenarios")
