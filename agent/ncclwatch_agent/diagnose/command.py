"""The command `ncclwatch diagnose`, contributed to the command line through an entry point."""

import asyncio
import os
import sys
from collections.abc import Iterable, Sequence

import click
import msgspec

from ncclwatch.contract.words.console import Progress, complain, put, put_json
from ncclwatch_agent.diagnose.answer import SCHEMA, Answer, JobAnswer, answer_of, lines_of
from ncclwatch_agent.diagnose.conclusion import conclude
from ncclwatch_agent.diagnose.looks import LOOKS, look_at
from ncclwatch_agent.diagnose.ranks import FoundJob, Process, above_of, find_jobs, numbered, read_processes
from ncclwatch_agent.stacks.py_spy import StackDesk

EXIT_NOBODY_STANDS = 0
EXIT_STANDS = 1
EXIT_NOTHING_FOUND = 2
NOTHING = (
    "no ranks on this node: no Python process of yours was started with RANK and WORLD_SIZE (torchrun sets them) or by "
    "srun. Name the processes with --pid, or run this as the user of the job or as root, on the node and in the "
    "container of the ranks."
)


@click.command()
@click.option("--pid", "pids", multiple=True, type=click.IntRange(min=1), help="Only this process; may be repeated. "
              "A launcher's pid stands for the ranks below it.")  # fmt: skip
@click.option("--job", default="", help="The ranks of this job on all nodes instead, through the server that its "
              "agents report to: the same as `ncclwatch stacks JOB --merged`.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@click.pass_context
def diagnose(context: click.Context, pids: tuple[int, ...], job: str, as_json: bool) -> None:
    """Show where the ranks on this node are, also of jobs that never attached.

    Finds ranks by their environment, looks at all of them three times within two seconds (py-spy, /proc), merges their
    stacks, and says what stacks alone can prove. Nothing is stopped or changed, but for a rank that has not moved at
    all outside every collective: it may be halted for about a second, to read its native frames.

    Exit code 0 when no rank is stuck, 1 when one is stuck, stopped or missing (a wait, and not yet
    a proof of a hang), 2 when no ranks were found.
    """
    if job:
        _through_the_server(context, job, pids, as_json)
        return
    jobs, trouble = choose(pids, read_processes(frozenset(pids)))
    if trouble:
        complain(trouble)
        sys.exit(EXIT_NOTHING_FOUND)
    with Progress(f"looking {LOOKS} times at {sum(len(job.ranks) for job in jobs)} ranks"):
        answers = asyncio.run(_diagnose(jobs))
    if as_json:
        put_json(msgspec.json.encode(Answer(schema=SCHEMA, jobs=answers)))
    else:
        for number, answer in enumerate(answers):
            put(*([""] if number else []), *lines_of(answer, LOOKS))
    sys.exit(EXIT_STANDS if any(answer.stands for answer in answers) else EXIT_NOBODY_STANDS)


def _through_the_server(context: click.Context, job: str, pids: Sequence[int], as_json: bool) -> None:
    """Let `ncclwatch stacks` do it, which is a command of another part: it is found by its name."""
    root = context.find_root().command
    stacks = root.get_command(context, "stacks") if isinstance(root, click.Group) else None
    if pids or stacks is None:
        raise click.UsageError("--job asks for all ranks of a job, --pid for processes of this node: give one of them")
    with stacks.make_context("stacks", [job, "--merged", "--json" if as_json else "--text"], context) as inner:
        stacks.invoke(inner)


async def _diagnose(jobs: Sequence[FoundJob]) -> tuple[JobAnswer, ...]:
    desk = StackDesk(at_once=max(2, os.cpu_count() or 1))
    found = await asyncio.gather(*(look_at(job.ranks, desk) for job in jobs))
    return tuple(
        answer_of(job, seen, conclude(job, seen), looked_s) for job, (seen, looked_s) in zip(jobs, found, strict=True)
    )


def choose(pids: Sequence[int], processes: Iterable[Process]) -> tuple[tuple[FoundJob, ...], str]:
    """Return the jobs to look at, all of them or those of some pids; or why there are none. Pure."""
    known = {process.pid: process for process in processes}
    for pid in pids:
        if pid not in known:
            return (), f"there is no process {pid} on this node"
    jobs = find_jobs(known.values(), within=frozenset(pids))
    # What of the pids is no rank, by its environment, nor has ranks below it, is taken as it is.
    covered = {pid for job in jobs for rank in job.ranks for pid in (rank.pid, *above_of(rank.pid, known))}
    plain = [known[pid] for pid in dict.fromkeys(pids) if pid not in covered]
    jobs = (*jobs, numbered(plain)) if plain else jobs
    return (jobs, "") if jobs else ((), NOTHING)
