"""Reads verdicts that were saved before: a report of `ncclwatch run --report`, of the API or of analyze itself."""

import msgspec

from ncclwatch_server.incidents.report import SCHEMA, JobReport
from ncclwatch_server.offline.errors import Unreadable


def is_report(value: object) -> bool:
    """Say whether a value looks like a report."""
    return isinstance(value, dict) and "schema" in value and "incidents" in value


def read(value: object) -> JobReport:
    """Return a saved report. Raises `Unreadable`."""
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise Unreadable(f"a report of schema {schema}; this version reads schema {SCHEMA}: update ncclwatch")
    try:
        return msgspec.convert(value, JobReport)
    except msgspec.ValidationError as error:
        raise Unreadable(f"a report that has not the form of schema {SCHEMA} ({error})") from error
