"""The command `ncclwatch-server`."""

import logging
import sys
from typing import NoReturn

import click

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.version import VERSION
from ncclwatch_server import settings

EXIT_USAGE = 2
EXIT_NOT_INSTALLED = 3


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=config.DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option("--store", default="", help="Where incidents are kept: an SQLite file or a SQLAlchemy URL.")
@click.option("--notify", default="", help="TOML file of the targets of alerts; else NCCLWATCH_NOTIFY names it.")
@click.option("--ephemeral", is_flag=True, help="Keep nothing, and end 10 s after the last agent has left.")
@click.option("--ready-fd", type=int, help="Write the port to this descriptor when listening.")
@click.option("--parent", type=int, help="End when this process has ended.")
@click.version_option(VERSION, prog_name="ncclwatch-server")
def main(
    host: str, port: int, store: str, notify: str, ephemeral: bool, ready_fd: int | None, parent: int | None
) -> None:
    """Watch training jobs, and say who hangs them.

    Agents and readers must show the token in NCCLWATCH_TOKEN, or in the file that
    NCCLWATCH_TOKEN_FILE names, if there is one.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        from ncclwatch_server.app import create_app
        from ncclwatch_server.notify.targets import read_targets
        from ncclwatch_server.serving import Serving, listen, serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ncclwatch"):
            raise
        _fail(f"the server needs the package {error.name}: pip install 'ncclwatch[server]'", EXIT_NOT_INSTALLED)
    try:
        token = settings.read_token()
        settings.check_exposure(host, token)
        targets = read_targets(notify)
        listener = listen(host, port)
        app = create_app(
            settings.Settings(store="" if ephemeral else settings.store_url(store), token=token), targets=targets
        )
    except ConfigError as error:
        _fail(str(error), EXIT_USAGE)
    serve(app, Serving(host=host, port=port, ephemeral=ephemeral, ready_fd=ready_fd, parent=parent), listener)


def _fail(sentence: str, code: int) -> NoReturn:
    click.echo(f"ncclwatch-server: {sentence}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
