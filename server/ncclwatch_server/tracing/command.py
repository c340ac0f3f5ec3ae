"""The command `ncclwatch trace`, contributed to the command line through an entry point."""

from pathlib import Path

import click

from ncclwatch.cli.client.http import Client, NotKnown
from ncclwatch.cli.commands.asking import complete_job, connect, server_option, the_job
from ncclwatch.cli.output.report_file import prepare
from ncclwatch.contract.errors import ConfigError, NcclwatchError
from ncclwatch.contract.words.console import Progress, put
from ncclwatch.contract.words.rank_lists import ranks_of
from ncclwatch.contract.words.text import bytes_words
from ncclwatch_server.offline.gather import Gathered
from ncclwatch_server.tracing.from_files import known_of
from ncclwatch_server.tracing.timeline import timeline

SUFFIXES = (".pftrace", ".perfetto-trace")


@click.command()
@click.argument("what", nargs=-1, shell_complete=complete_job)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write. Default: JOB.pftrace.")
@click.option("--rank", "ranks", default="", help="Only these ranks of a live job, such as 3 or 0-7,12.")
@server_option
def trace(what: tuple[str, ...], output: Path | None, ranks: str, server: str) -> None:
    """Write WHAT as a trace that https://ui.perfetto.dev opens: a live job, an incident, or files of a job.

    Ranks are tracks: their states in the last ten minutes, the operations that their rings hold, batches, saves. The
    members of a collective are linked, and the incident and its culprit are marked. Files are rings (*.ring) or Flight
    Recorder dumps, or directories with them; their clocks are aligned by collectives. Of more than 256 ranks those
    that matter are shown. Without WHAT it is the only job that runs.
    """
    paths = tuple(Path(each) for each in what if Path(each).exists())
    if paths and len(paths) < len(what):
        missing = next(each for each in what if not Path(each).exists())
        raise ConfigError(f"there is no {missing}; name files and directories, or one job or incident")
    if len(what) > 1 and not paths:
        raise ConfigError(f"{len(what)} jobs were named; name one, or files")
    if output is not None and output.suffix not in SUFFIXES:
        raise ConfigError(f"cannot tell what to write to {output}; a trace has the suffix {SUFFIXES[0]}")
    if what and not paths and (what[0].startswith(("/", "./", "../", "~")) or what[0].endswith(".ring")):
        raise ConfigError(f"there is no {what[0]}; name files and directories, or one job or incident")
    if paths:
        name, data = paths[0].resolve().name, _of_files(paths)
    else:
        client = connect(server)
        name = _job(client, what[0] if what else "")
        with Progress(f"asking the nodes of job {name} for what their ranks recorded"):
            data = client.trace(name, ranks_of(ranks) if ranks else None)
    target = output if output is not None else Path(f"{name.replace('/', '-')}{SUFFIXES[0]}")
    prepare(target, "the trace", "--output").put(data, "the trace", "--output")
    put(f"{target} ({bytes_words(len(data))}): open it at https://ui.perfetto.dev, which reads it in the browser")


def _of_files(paths: tuple[Path, ...]) -> bytes:
    from ncclwatch_server.tracing.perfetto import encode

    gathered = Gathered()
    with Progress(lambda: f"reading what the job left behind, {gathered.files} files so far"):
        return encode(timeline(known_of(paths, gathered)))


def _job(client: Client, named: str) -> str:
    """Return the job of a name, or of the incident with this id."""
    try:
        return the_job(client, named).id
    except NotKnown as unknown:
        try:
            return client.incident(named).job
        except NcclwatchError:
            raise unknown from None
