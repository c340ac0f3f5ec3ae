"""Names the commands of `ncclwatch`. Each is imported when it is called for: `ncclwatch version` is quick."""

import click

from ncclwatch.cli.contributed import Commands, Lazy
from ncclwatch.cli.exits import table
from ncclwatch.contract.version import VERSION

COMMANDS = {
    "build-native": Lazy(
        "ncclwatch.cli.commands.build_native:build_native",
        "Compile the native recorder for the torch of this environment.",
    ),
    "capture": Lazy(
        "ncclwatch.cli.commands.capture:capture", "Write all that is known of a job now to one file, for later."
    ),
    "completion": Lazy("ncclwatch.cli.commands.completion:completion", "Print what lets a shell complete ncclwatch."),
    "config": Lazy("ncclwatch.cli.commands.config_show:config", "Show the settings in force and where each came from."),
    "doctor": Lazy(
        "ncclwatch.cli.commands.doctor:doctor", "Check what ncclwatch lacks on this machine, or on the nodes of a job."
    ),
    "explain": Lazy("ncclwatch.cli.explain:explain", "Explain a cause: why it happens and how to fix it."),
    "incidents": Lazy("ncclwatch.cli.commands.incidents:incidents", "List the incidents of a server."),
    "report": Lazy(
        "ncclwatch.cli.commands.report:report", "Write one incident as a file, or what all hangs of a period have cost."
    ),
    "run": Lazy("ncclwatch.cli.commands.run:run", "Run a training, and report what hangs it."),
    "silence": Lazy("ncclwatch.cli.commands.silence:silence", "Send no alerts about jobs for some time."),
    "stacks": Lazy("ncclwatch.cli.commands.stacks:stacks", "Show where the ranks of a job are, on all nodes."),
    "status": Lazy("ncclwatch.cli.commands.status:status", "Show the jobs and open incidents of a server."),
    "top": Lazy("ncclwatch.cli.commands.top:top", "Show the jobs of a server, live."),
    "version": Lazy("ncclwatch.cli.commands.version:version", "Print the version."),
    # Of other parts, which are found by their entry points; named here so that --help need not import them.
    "analyze": Lazy("", "Find what hung a job in the files it left behind."),
    "diagnose": Lazy("", "Show where the ranks on this node are, also of jobs that never attached."),
    "notify": Lazy("", "Try the targets of alerts."),
    "simulate": Lazy("", "Let a job of up to 100,000 ranks report that was never run."),
    "trace": Lazy("", "Write the last minutes of a job as a trace for Perfetto."),
}


@click.group(
    cls=Commands, lazy=COMMANDS, epilog=table(), context_settings={"help_option_names": ["-h", "--help"]}
)  # fmt: skip
@click.version_option(VERSION, prog_name="ncclwatch", message="%(prog)s %(version)s")
def main() -> None:
    """Show which rank, on which host, at which line, hangs a PyTorch training job.

    Answers go to standard output. Commands that take --text print text on a terminal, and JSON elsewhere; others that
    take --json print text without it. Everything else goes to standard error. NO_COLOR turns colours off.
    """
