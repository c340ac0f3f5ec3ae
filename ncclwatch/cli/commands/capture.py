"""The command `ncclwatch capture`: all that is known of a job now, in one file that can be read again."""

from pathlib import Path

import click

from ncclwatch.cli.commands.asking import complete_job, connect, server_option, the_job
from ncclwatch.cli.output.kept_files import capture_name
from ncclwatch.cli.output.report_file import prepare
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.words.console import Progress, put
from ncclwatch.contract.words.text import bytes_words

WITHIN_S = 20.0  # for stacks


@click.command()
@click.argument("job", default="", shell_complete=complete_job)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write. Default: JOB-TIME.zip.")
@server_option
def capture(job: str, output: Path | None, server: str) -> None:
    """Write all that is known of JOB to one file, which `ncclwatch analyze` reads; without JOB, of the only one.

    What each rank has recorded, stacks (of culprits with native frames, which halts a rank for a second), incidents
    and their evidence. Take it before a hung job is ended. It holds paths, host names and lines of source.
    """
    client = connect(server)
    named = the_job(client, job).id
    target = output if output is not None else Path(capture_name(named))
    file = prepare(target, "the capture", "--output")
    try:
        with Progress(f"the nodes of job {named} tell what they know"):
            data = client.capture(named, WITHIN_S)
    except NcclwatchError:
        file.discard()
        raise
    file.put(data, "the capture", "--output")
    put(f"{target} ({bytes_words(len(data))}): read it with ncclwatch analyze {target}")
