"""Runs the command `ncclwatch-server`."""

import gc
import logging
import sys
from functools import partial
from typing import NoReturn

import click

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.version import VERSION
from ncclwatch.contract.words.console import complain
from ncclwatch_server import settings
from ncclwatch_server.runtime import logs

log = logging.getLogger("ncclwatch.server")

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
@click.option(
    "--store", default="", help="Where incidents are kept: an SQLite file, or postgresql://USER@HOST/DATABASE."
)
@click.option(
    "--advertise",
    default="",
    metavar="URL",
    help="Where agents and other servers reach this one. Of several servers with one PostgreSQL one leads, and another "
    "takes over when it fails.",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(min=0.01),
    default=90.0,
    show_default=True,
    help="Days after which closed incidents and what jobs have taught are deleted.",
)
@click.option(
    "--keep-incidents",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Closed incidents kept of one job; the oldest go first.",
)
@click.option("--tls-cert", default="", help="Serve https:// with this certificate and its chain, a PEM file.")
@click.option("--tls-key", default="", help="The key of the certificate, a PEM file, if it is not in the same one.")
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="A further name this server answers to where no token is set, as behind a proxy.",
)
@click.option(
    "--allow-user",
    multiple=True,
    metavar="USER",
    help="A further user of this machine who may connect where no token is set, as a proxy or Prometheus runs as one.",
)
@click.option(
    "--trusted-proxy",
    multiple=True,
    metavar="ADDRESS",
    help="Address or network of a proxy whose X-Forwarded-For and X-Forwarded-Proto are believed; else nobody's are.",
)
@click.option("--notify", default="", help="TOML file of the targets of alerts; else NCCLWATCH_NOTIFY names it.")
@click.option(
    "--log-url",
    default="",
    metavar="TEMPLATE",
    help="Where pages link for logs: https://logs.example.com/?q={job}+{host}+{rank}+{pid}&from={from_s}&to={to_s}.",
)
@click.option("--listen-fd", type=int, help="Listen on this socket, which whoever started it has opened.")
@click.option(
    "--ephemeral",
    is_flag=True,
    help="Keep nothing, and end 10 s after the last agent has left, or with --parent only when that has ended.",
)
@click.option(
    "--remote",
    default="",
    metavar="HOST",
    help="Let agents of other nodes in on this address as well; needs --ephemeral and NCCLWATCH_AGENT_TOKEN.",
)
@click.option("--stand-by", is_flag=True, help="With --parent: end only when that has ended, agents or none.")
@click.option("--ready-fd", type=int, help="Write the port to this descriptor when listening.")
@click.option("--parent", type=int, help="End when this process has ended.")
@click.version_option(VERSION, prog_name="ncclwatch-server")
def main(  # noqa: PLR0913  (one for each flag)
    host: str, port: int, store: str, advertise: str, keep_days: float, keep_incidents: int, tls_cert: str,
    tls_key: str, allow_host: tuple[str, ...], allow_user: tuple[str, ...], trusted_proxy: tuple[str, ...],
    notify: str, log_url: str, ephemeral: bool, remote: str, stand_by: bool, listen_fd: int | None,
    ready_fd: int | None, parent: int | None,
) -> None:  # fmt: skip
    """Watch training jobs, and say who hangs them.

    Whoever comes must show a token, if there is one in NCCLWATCH_TOKEN (good for everything), or in
    NCCLWATCH_AGENT_TOKEN, NCCLWATCH_VIEWER_TOKEN (reads) or NCCLWATCH_OPERATOR_TOKEN (reads, asks for
    stacks, deletes), or in the files that these names with _FILE behind them hold.
    """
    logs.to_stderr()
    gc.disable()  # what is imported and built until `serve` stays; looking through it takes a tenth of the start
    try:
        from ncclwatch_server.app import create_app
        from ncclwatch_server.notify.targets import read_targets
        from ncclwatch_server.security.peers import proxies
        from ncclwatch_server.serving.elected import Election
        from ncclwatch_server.serving.uvicorn_server import Remote, Serving, check_tls, inherited, listen, serve
        from ncclwatch_server.ui.log_links import check_log_url
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ncclwatch"):
            raise
        _fail(f"the server needs the package {error.name}: pip install 'ncclwatch[server]'", EXIT_NOT_INSTALLED)
    try:
        remote_grants = settings.read_remote_grants(remote, ephemeral=ephemeral)
        grants = settings.read_grants(private=ephemeral) if not remote else ()
        settings.check_exposure(host, guarded=bool(grants))
        settings.check_strength(grants, host, private=ephemeral)
        settings.check_strength(remote_grants, remote)
        trusted = proxies(trusted_proxy)
        tls = check_tls(tls_cert, tls_key)
        targets = read_targets(notify)
        listener = listen(host, port) if listen_fd is None else inherited(listen_fd)
        entrance = Remote.open(remote) if remote else None
        said = settings.Settings(
            store="" if ephemeral else settings.store_url(store),
            grants=grants,
            hosts=None if grants else settings.own_names(allow_host),
            keeping=settings.Keeping(days=keep_days, incidents_per_job=keep_incidents),
            private=ephemeral,
            users=settings.user_ids(allow_user),
            trusted=trusted,
            remote=remote_grants,
            log_url=check_log_url(log_url),
        )
        election = Election.of(advertise, said) if advertise else None
        make_app = partial(create_app, said, targets=targets)
        app = make_app() if election is None else None
    except ConfigError as error:
        _fail(str(error), EXIT_USAGE)
    if tls is None and not settings.is_loopback(host):
        log.warning("tokens and stacks travel to %s in clear text; --tls-cert and --tls-key encrypt them", host)
    serving = Serving(
        host=host, port=port, ephemeral=ephemeral, ready_fd=ready_fd, parent=parent, tls=tls,
        trusted=tuple(map(str, trusted)), remote=entrance, stand_by=stand_by,
    )  # fmt: skip
    if app is not None or election is None:
        serve(app or make_app(), serving, listener)
        return
    try:
        election.serve(serving, listener, lambda elector: make_app(elector=elector))
    except ConfigError as error:
        _fail(str(error), EXIT_USAGE)


def _fail(sentence: str, code: int) -> NoReturn:
    complain(sentence, "ncclwatch-server")
    sys.exit(code)


if __name__ == "__main__":
    main()
