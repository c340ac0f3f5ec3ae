"""The command `ncclwatch version`."""

import click

from ncclwatch.contract.version import VERSION
from ncclwatch.contract.words.console import put


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the versions of Python and torch.")
def version(as_json: bool) -> None:
    """Print the version."""
    if not as_json:
        put(f"ncclwatch {VERSION}")
        return
    import json
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        torch: str | None = installed("torch")
    except PackageNotFoundError:
        torch = None
    put(json.dumps({"schema": 1, "ncclwatch": VERSION, "python": platform.python_version(), "torch": torch}))
