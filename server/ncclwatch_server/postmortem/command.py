"""The command `ncclwatch analyze`, contributed to the command line through an entry point."""

import gc
import sys
from pathlib import Path

import click
import msgspec

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch_server.postmortem.answer import answer, incidents_of, text
from ncclwatch_server.postmortem.errors import NothingToAnalyze
from ncclwatch_server.postmortem.gather import gather
from ncclwatch_server.postmortem.matter import open_matter
from ncclwatch_server.postmortem.verdict import judge

EXIT_UNUSABLE = 2


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def analyze(paths: tuple[Path, ...], as_json: bool) -> None:
    """Say what hung a job, by the files in PATHS that it left behind.

    Reads Flight Recorder dumps, in any mixture, with ranks missing.
    """
    gc.disable()  # dumps are large trees without cycles, and this process ends soon
    try:
        said = _analyze(paths, as_json)
    except NcclwatchError as error:
        click.echo(f"ncclwatch: {error}", err=True)
        sys.exit(EXIT_UNUSABLE)
    click.echo(said, nl=False)


def _analyze(paths: tuple[Path, ...], as_json: bool) -> str:
    gathered = gather(paths)
    if not gathered.recordings:
        raise NothingToAnalyze(_nothing(paths, gathered.notes))
    matter = open_matter(gathered.recordings, {})
    incidents = incidents_of(paths[0].resolve().name, matter, judge(matter))
    if as_json:
        made = answer(paths[0].resolve().name, matter, gathered, incidents)
        return msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"
    return text(matter, gathered, incidents)


def _nothing(paths: tuple[Path, ...], notes: list[str]) -> str:
    tried = ", ".join(map(str, paths[:3]))
    why = "".join(f"\n  {note}" for note in notes[:5])
    return (
        f"nothing in {tried} can be analyzed. Name a directory with Flight Recorder dumps "
        f"(TORCH_FR_DUMP_TEMP_FILE), rings, reports or logs of the job.{why}"
    )
