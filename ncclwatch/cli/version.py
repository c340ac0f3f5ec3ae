"""The command `ncclwatch version`."""

import click

from ncclwatch.contract.version import VERSION


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"ncclwatch {VERSION}")
