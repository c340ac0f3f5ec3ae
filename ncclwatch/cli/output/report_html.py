"""Writes an incident as one HTML file. It loads nothing, runs nothing, and shows what ranks have chosen as text.

The template escapes every value. The incident's JSON lies in the file too, for machines; a policy in its head forbids
scripts, so that even what got past the escaping would not run.
"""

from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import escape

from ncclwatch.cli.client.answers import Whole
from ncclwatch.cli.output import incident_facts as the
from ncclwatch.contract.version import VERSION
from ncclwatch.contract.words.printable import json_text, one_line

TEMPLATES = Path(__file__).parent / "templates"


def html(incident: Whole, data: bytes) -> str:
    """Return the report. `data` is the incident as JSON."""
    return _template().render(
        incident=incident,
        the=the,
        version=VERSION,
        json=escape(json_text(data)),  # its lines are its own
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Terminal escapes and marks that turn the writing direction have no place on a page either.
        finalize=lambda value: one_line(value) if type(value) is str else value,
    )
    return environment.get_template("incident.html")
