"""The command `ncclwatch-agent`. Little is imported before it has detached: a rank waits for that."""

import sys

import click

from ncclwatch.contract import config
from ncclwatch.contract.version import VERSION
from ncclwatch_agent import residence
from ncclwatch_agent.residence import ResidenceError

EXIT_USAGE = 2


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--spawned", is_flag=True, help="Detach, and end when no rank needs an agent. Ranks use this.")
@click.option("--lock-fd", type=int, help="The lock of the runtime directory, inherited from the rank.")
@click.option(
    "--runtime-dir",
    default=None,
    help=f"Where rings lie: one directory for each job. Default: /dev/shm/ncclwatch-UID, see {config.ENV_RUNTIME_DIR}.",
)
@click.version_option(VERSION, prog_name="ncclwatch-agent")
def main(spawned: bool, lock_fd: int | None, runtime_dir: str | None) -> None:
    """Watch the ranks of this node from outside, and report to the servers that they name.

    Nobody needs to start it: the first rank on a node does. Started by hand it stays until it is told to end.
    """
    directory = runtime_dir or config.runtime_dir()
    try:
        if lock_fd is None:
            lock_fd = residence.take_lock(directory)
        else:
            residence.adopt_lock(lock_fd, directory)
    except ResidenceError as error:
        click.echo(f"ncclwatch-agent: {error}", err=True)
        sys.exit(EXIT_USAGE)
    if spawned:
        residence.daemonise()
    _live(directory, spawned=spawned)


def _live(directory: str, *, spawned: bool) -> None:
    import asyncio

    from ncclwatch_agent.agent import Settings, watch
    from ncclwatch_agent.log import log, open_log

    open_log(directory, terminal=not spawned)
    if not residence.write_card(directory, VERSION):
        log.warning(
            "cannot write %s/%s: ranks cannot allow this agent to look at their stacks", directory, residence.CARD_NAME
        )
    try:
        asyncio.run(watch(Settings(runtime_dir=directory, spawned=spawned, version=VERSION)))
    except Exception:
        log.exception("the agent ends: this is a bug in ncclwatch")
        raise
    finally:
        residence.remove_card(directory)


if __name__ == "__main__":
    main()
