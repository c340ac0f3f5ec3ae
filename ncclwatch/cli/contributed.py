"""Lists the commands and imports each when it is called for: our own, and those that entry points name.

Whatever a command needs is imported when it is called for. Entry points are looked for only where no command of our
own has the name: reading those of all installed packages takes longer than the rest.
"""

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from ncclwatch.cli.exits import Exit
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.words import console

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

GROUP = "ncclwatch.commands"
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Lazy(NamedTuple):
    """A command that is imported when it is called for."""

    place: str  # "module:attribute"; "": an entry point names it
    short_help: str


class Commands(click.Group):
    """The commands of this package, and those that entry points name."""

    def __init__(
        self,
        name: str | None = None,
        commands: Mapping[str, click.Command] | None = None,
        lazy: Mapping[str, Lazy] | None = None,
        **attributes: object,
    ) -> None:
        super().__init__(name, dict(commands or {}), **attributes)  # type: ignore[arg-type]  # click's own
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        own = (name for name, lazy in self._lazy.items() if lazy.place)
        return sorted({*super().list_commands(ctx), *own, *_entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None if there is none of that name."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        lazy = self._lazy.get(cmd_name)
        if lazy is not None and lazy.place:
            module, attribute = lazy.place.split(":")
            command = getattr(importlib.import_module(module), attribute)
            assert isinstance(command, click.Command)
            return command
        found = _entry_points().get(cmd_name)
        return None if found is None else _load(found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing those whose help is known."""
        width = formatter.width - 6 - max(map(len, self.list_commands(ctx)), default=0)
        rows = []
        for name in self.list_commands(ctx):
            known = self._lazy.get(name)
            command = self.get_command(ctx, name) if known is None else None
            if known is not None:
                rows.append((name, known.short_help))
            elif command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(width)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was asked for. What could not be done is one sentence and exit code 2."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # it was closed before the program began
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (to the end of the program)
        try:
            return super().invoke(ctx)
        except NcclwatchError as error:
            console.complain(error)
            sys.exit(Exit.NOT_DONE)
        except KeyboardInterrupt:
            sys.exit(Exit.INTERRUPTED)
        except BrokenPipeError:
            raise  # click ends the program for it: whoever read the answer has read enough
        except OSError as error:
            if error.errno not in _UNWRITABLE or error.filename is not None:
                raise
            console.complain(f"the answer cannot be written to standard output ({error.strerror}); write it elsewhere")
            with contextlib.suppress(OSError, ValueError):  # what is left in the buffer would fail again at the exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(Exit.NOT_DONE)


def entry_points(group: str) -> "EntryPoints":
    """Return the entry points of all installed packages; even to import what finds them takes time."""
    from importlib.metadata import entry_points as find

    return find(group=group)


def _entry_points() -> "dict[str, EntryPoint]":
    return {found.name: found for found in entry_points(group=GROUP)}


def _load(found: "EntryPoint") -> click.Command:
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
        console.complain(
            f"`ncclwatch {name}` needs the server's packages, and one of them is not here ({reason}); run: "
            f"{sys.executable} -m pip install 'ncclwatch[server]'"
        )
        sys.exit(Exit.NOT_DONE)

    return complain
