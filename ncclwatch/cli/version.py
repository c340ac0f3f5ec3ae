"""The command `ncclwatch version`."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import click


@click.command()
def version() -> None:
    """Print the version."""
    try:
        click.echo(f"ncclwatch {installed_version('ncclwatch')}")
    except PackageNotFoundError:
        click.echo("ncclwatch from a source tree that is not installed")
