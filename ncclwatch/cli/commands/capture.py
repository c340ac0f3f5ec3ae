"""The command `ncclwatch capture`: all that is known of a job now, in one file that can be read again."""

from pathlib import Path

import click

from ncclwatch.cli.commands.asking import complete_job, connect, server_option, the_job
from ncclwatch.cli.output.kept_captures import name_of
from ncclwatch.cli.output.report_file import prepare
from ncclwatch.contract.errors import ConfigError, NcclwatchError
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
    target = output if output is not None else Path(name_of(named))
    file = prepare(target, "the capture", "--output")
    try:
        with Progress(f"the nodes of job {named} tell what they know"):
            data = client.capture(named, WITHIN_S)
        file.write(data)
    except OSError as error:
        file.discard()
        raise ConfigError(
            f"cannot write the capture to {target} ({error.strerror}); name another file with --output"
        ) from error
    except NcclwatchError:
        file.discard()
        raise
    put(f"{target} ({bytes_words(len(data))}): read it with ncclwatch analyze {target}")
