"""The command `ncclwatch-agent`. Little is imported before it has detached: a rank waits for that."""

import os
import sys

import click

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import PrivateDir
from ncclwatch.contract.version import VERSION
from ncclwatch.contract.words.console import complain
from ncclwatch_agent import one_agent_per_node
from ncclwatch_agent.one_agent_per_node import ResidenceError

EXIT_USAGE = 2
KERNEL_LOG = "/dev/kmsg"


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
    kernel_log = _open_kernel_log()
    try:
        owner = one_agent_per_node.owner_to_become(directory)
        if owner is not None:
            _load_all()
            one_agent_per_node.become(owner)
        place = one_agent_per_node.enter(directory)
        if lock_fd is None:
            lock_fd = one_agent_per_node.take_lock(place)
        else:
            one_agent_per_node.adopt_lock(lock_fd, place)
    except ResidenceError as error:
        complain(error, "ncclwatch-agent")
        sys.exit(EXIT_USAGE)
    if spawned:
        one_agent_per_node.daemonise()
    _live(place, spawned=spawned, kernel_log=kernel_log)


def _open_kernel_log() -> int:
    """Open the kernel's log while that is allowed, -1 if it is not; root may be about to become somebody else."""
    try:
        return os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1


def _load_all() -> None:
    """Load what an agent needs while that can be read: root's Python may lie in root's own home."""
    import encodings.idna  # noqa: F401 - looked up by name whenever a host is
    import importlib

    importlib.import_module("ncclwatch_agent.agent")


def _live(place: PrivateDir, *, spawned: bool, kernel_log: int) -> None:
    import asyncio

    from ncclwatch_agent.agent import Settings, watch
    from ncclwatch_agent.log import log, open_log

    open_log(place, terminal=not spawned)
    has_card = one_agent_per_node.write_card(place, VERSION)
    if not has_card:
        log.warning(
            "cannot write %s/%s: until that succeeds, ranks cannot allow this agent to look at their stacks",
            place.path,
            one_agent_per_node.CARD_NAME,
        )
    try:
        settings = Settings(runtime=place, spawned=spawned, version=VERSION, kernel_log=kernel_log, has_card=has_card)
        asyncio.run(watch(settings))
    except BaseException:  # a spawned agent has no terminal: an end that nobody asked for would leave no trace
        log.exception("the agent ends: this is a bug in ncclwatch; the next rank that looks starts another")
        raise
    finally:
        one_agent_per_node.remove_card(place)


if __name__ == "__main__":
    main()
