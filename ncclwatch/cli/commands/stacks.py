"""The command `ncclwatch stacks`: shows where the ranks of a job stand right now, on all of its nodes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ncclwatch.cli.client.answers import JobStacks
from ncclwatch.cli.commands.asking import complete_job, connect, json_option, put_json, server_option, the_job
from ncclwatch.contract.model.rank import StackFrame
from ncclwatch.contract.model.verdict import MergedStack
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch.contract.stacks.places import is_python
from ncclwatch.contract.stacks.tree import short_path
from ncclwatch.contract.words.console import Progress, wants_json
from ncclwatch.contract.words.rank_lists import host_list, ranks_of
from ncclwatch.contract.words.text import rank_list, ranks_words, seconds_words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

RANKS_CHARS_MAX = 60


@click.command()
@click.argument("job", default="", shell_complete=complete_job)
@click.option("--rank", "ranks", default="", help="Only these ranks, such as 3 or 0-7,12.")
@click.option("--merged", is_flag=True, help="One tree of all main threads instead of each distinct stack.")
@click.option(
    "--native", is_flag=True, help="Native frames and child processes as well. Halts a rank that does not run for a "
    "second; of a big job for the culprits only, unless --rank names others.",
)  # fmt: skip
@server_option
@json_option
def stacks(job: str, ranks: str, merged: bool, native: bool, server: str, as_json: bool | None) -> None:
    """Show where the ranks of JOB stand, on all of its nodes; without JOB, of the only one that runs.

    The server asks the agents of the job, they look with py-spy. Of more than 256 ranks those of open incidents and a
    sample are looked at, unless --rank names others.
    """
    wanted = ranks_of(ranks) if ranks else None
    client = connect(server)
    named = the_job(client, job).id
    with Progress(f"the nodes of job {named} look at {ranks_words(wanted) if wanted else 'its ranks'}"):
        data = client.stacks_json(named, wanted, native=native)
    if wants_json(as_json):
        put_json(data)
        return
    from ncclwatch.cli.output.terminal import console

    shown = console()
    for part in render(client.stacks(data), merged=merged):
        shown.print(part, soft_wrap=True)


def render(found: JobStacks, *, merged: bool) -> "Iterator[RenderableType]":
    """Yield the answer for people: who stands where, the odd ones first, then the stacks, then what is missing."""
    from ncclwatch.cli.output.job_table import shortened
    from ncclwatch.cli.output.terminal import said

    hosts = shortened(host_list(each.host for each in found.hosts), RANKS_CHARS_MAX) or "no node"
    asked = f"{ranks_words(found.asked)} of {found.world_size}" if found.chosen == "as named" else found.chosen
    yield said(f"job {found.job}: {asked}, on {hosts}, in {seconds_words(found.took_s)}", "bold")
    for place in found.places:
        odd = "  (differs from the others)" if place.odd else ""
        ranks = shortened(ranks_words(place.ranks), RANKS_CHARS_MAX)
        yield said(f"  {ranks} {place.words}{odd}", "bold red" if place.odd else "")
    if merged and found.tree:
        yield ""
        yield said("main threads, outermost frame first:", "bold")
        yield from (said(f"  {line}") for line in found.tree)
    # The tree has the main threads; what a closer look showed is in no tree.
    for stack in found.stacks:
        if not merged or "native frames" in stack.thread or "child process" in stack.thread:
            yield ""
            yield from _stack(stack)
    if found.left_out:
        yield said(f"and {found.left_out} more distinct stacks; name fewer ranks with --rank")
    for unseen in found.unseen:
        yield ""
        yield said(f"no stack of {shortened(ranks_words(unseen.ranks), RANKS_CHARS_MAX)}: {unseen.why}", "yellow")
    for each in found.recorded:
        ranks = shortened(ranks_words(each.ranks), RANKS_CHARS_MAX)
        yield said(f"  by its own record {ranks} {'is' if len(each.ranks) == 1 else 'are'} {each.words}")
    for note in found.notes:
        yield ""
        yield said(note, "yellow")


def _stack(stack: MergedStack) -> "Iterator[Text]":
    """Yield a stack, the innermost frame first; the user's own lines are marked."""
    from ncclwatch.cli.output.terminal import said

    yield said(f"rank{'s' if len(stack.ranks) > 1 else ''} {rank_list(stack.ranks)}, thread {stack.thread}:", "bold")
    for frame in stack.frames:
        users = is_python(frame) and is_users_by_path(frame.file)
        yield said(f"  {'>' if users else ' '} {_words(frame)}", "" if users else "dim")


def _words(frame: StackFrame) -> str:
    line = f":{frame.line}" if frame.line or is_python(frame) else ""
    return f"{frame.function} ({short_path(frame.file)}{line})"
