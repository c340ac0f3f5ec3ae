"""The command `ncclwatch explain`: what a cause means and how to fix it, without a network."""

import sys

import click
import msgspec
from rich.markdown import Markdown

from ncclwatch.cli.output.terminal import console
from ncclwatch.contract.words.cause_pages import cause_of, first_sentences, page_of
from ncclwatch.contract.words.console import JSON_HELP, put, put_json, wants_json


@click.command()
@click.argument("cause", required=False)
@click.option("--json/--text", "as_json", default=None, help=JSON_HELP)
def explain(cause: str | None, as_json: bool | None) -> None:
    """Explain a cause: what it looks like, why it happens, how to fix it.

    CAUSE is the word that a verdict shows, such as process_frozen. Without it, all causes are listed.
    """
    if cause is None:
        causes = [{"cause": each.value, "sentence": sentence} for each, sentence in first_sentences()]
        if wants_json(as_json):
            put_json(msgspec.json.encode({"schema": 1, "causes": causes}))
        else:
            put(*(f"{each['cause']:<28} {each['sentence']}" for each in causes))
        return
    found = cause_of(cause)
    if found is None:
        raise click.UsageError(f"there is no cause {cause!r}; `ncclwatch explain` lists all of them")
    page = page_of(found)
    if wants_json(as_json):
        put_json(msgspec.json.encode({"schema": 1, "cause": found.value, "page": page}))
    elif sys.stdout.isatty():
        console().print(Markdown(page))
    else:
        put(*page.splitlines())
