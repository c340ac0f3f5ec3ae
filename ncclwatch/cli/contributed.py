"""Which commands do other parts of ncclwatch contribute? Their entry points are loaded when they are called for."""

import sys
from importlib.metadata import EntryPoint, entry_points

import click

GROUP = "ncclwatch.commands"


class Commands(click.Group):
    """The commands of this package, and those that entry points name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *_entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None if there is none of that name."""
        own = super().get_command(ctx, cmd_name)
        found = _entry_points().get(cmd_name)
        return own if own is not None or found is None else _load(found)


def _entry_points() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=GROUP)}


def _load(found: EntryPoint) -> click.Command:
    """Return the command of an entry point, or one that says what to install."""
    try:
        command = found.load()
    except ImportError as error:
        return _unavailable(found.name, str(error))
    if not isinstance(command, click.Command):
        return _unavailable(found.name, f"{found.value} is no command")
    return command


def _unavailable(name: str, reason: str) -> click.Command:
    @click.command(
        name,
        help="Not available here: it needs the server's packages. pip install 'ncclwatch[server]'",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def complain() -> None:
        click.echo(
            f"ncclwatch: `ncclwatch {name}` needs the server's packages, and one of them is not here ({reason}); run: "
            f"{sys.executable} -m pip install 'ncclwatch[server]'",
            err=True,
        )
        sys.exit(2)

    return complain
