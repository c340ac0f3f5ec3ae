"""Which commands does `ncclwatch` have?"""

import click

from ncclwatch.cli.build_native import build_native
from ncclwatch.cli.contributed import Commands
from ncclwatch.cli.doctor import doctor
from ncclwatch.cli.run import run
from ncclwatch.cli.silence import silence
from ncclwatch.cli.status import status
from ncclwatch.cli.version import version


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Say which rank, on which host, at which line, hangs a PyTorch training job."""


main.add_command(build_native)
main.add_command(doctor)
main.add_command(run)
main.add_command(silence)
main.add_command(status)
main.add_command(version)
