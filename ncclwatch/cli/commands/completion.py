"""The command `ncclwatch completion`: prints what lets a shell complete commands, options, jobs and incidents."""

import click
from click.shell_completion import get_completion_class

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.words.console import put


class NoCompletion(NcclwatchError):
    """This click knows no completion for the shell."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what lets SHELL complete `ncclwatch`. Put one of these into its start-up file:

    \b
      bash  eval "$(ncclwatch completion bash)"      ~/.bashrc
      zsh   eval "$(ncclwatch completion zsh)"       ~/.zshrc
      fish  ncclwatch completion fish | source       ~/.config/fish/config.fish

    Names of jobs and incidents are asked of the server, which has 0.7 s to answer.
    """
    from ncclwatch.cli.main import main

    found = get_completion_class(shell)
    if found is None:
        raise NoCompletion(f"this version of click has no completion for {shell}; update click")
    put(*found(main, {}, "ncclwatch", "_NCCLWATCH_COMPLETE").source().split("\n"))
