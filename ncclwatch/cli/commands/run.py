"""The command `ncclwatch run`: run a training and say who hangs it."""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from ncclwatch.cli.client.http import answering, token
from ncclwatch.cli.output.kept_files import keep_capture, keep_report
from ncclwatch.cli.output.report_file import ReportFile, prepare
from ncclwatch.cli.running.embedded import READY_S, EmbeddedServer, NoServer
from ncclwatch.cli.running.following import Attempts, Following, Wanted, empty_report, tell
from ncclwatch.cli.running.hooks import CommandHooks
from ncclwatch.cli.running.injection import NOBODY, injected
from ncclwatch.cli.running.names import is_part, name_of
from ncclwatch.cli.running.training import CommandFailed, Training
from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.network import tls, tokens, urls
from ncclwatch.contract.on_hang.hook import problem
from ncclwatch.contract.on_hang.policy import Action, Policy, in_force
from ncclwatch.contract.on_hang.ways import RAISE, REPORT, WAYS
from ncclwatch.contract.words.console import Progress, complain

EXIT_USAGE = 2
EXIT_ABORTED = 70
EXIT_ELSEWHERE = 75  # as EX_TEMPFAIL of sysexits.h: to be tried again
_EXITS = {Action.ABORT: EXIT_ABORTED, Action.RESTART_ELSEWHERE: EXIT_ELSEWHERE}
NOT_READY = (
    f"ncclwatch: the server of this run is not ready after {READY_S:.0f} s; this machine may be too busy. The training "
    "starts, and is watched as soon as it is.\n"
)
NEEDS_SERVER = (
    "ncclwatch: --report needs a server that hears of the whole job and answers here. On several nodes give each the "
    "same --server URL; where NCCLWATCH_SERVER names one, show a token that may read it, in NCCLWATCH_VIEWER_TOKEN or "
    "NCCLWATCH_TOKEN. The training starts, and its verdict appears on the terminal of rank 0's node.\n"
)
ANSWER_S = 3.0  # a server has so long for an answer,
ANSWER_OWN_S = 10.0  # and that of this run longer, which gets no more of a busy machine than the training leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run, and how."""

    command: tuple[str, ...]
    policy: Policy | None  # what is done about a hang; None: it is only reported
    on_hang: Mapping[str, str]  # the same in the environment, for agents that act
    server: str  # "": one of its own
    report: ReportFile | None
    job: str
    token: str
    verbose: bool  # tell all that is known
    inject: bool  # attach in ranks that do not do so themselves
    told_by_agents: bool  # there is a server for the job, which this process may not ask


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--on-hang",
    type=click.Choice(WAYS),
    help="Only report a hang (the default), write a capture as well, raise HangError in its ranks, end the "
    "command with exit code 70, start it again, or do what the policy says for the cause. Else NCCLWATCH_ON_HANG.",
)
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="File with the policy; else NCCLWATCH_HANG_POLICY, else the default one: see ncclwatch config policy.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Write all incidents to this file, as JSON, when the command has ended. Default: where there are any and the "
    "server ends with the command, a file in the state directory.",
)
@click.option("--verbose", is_flag=True, help="Print the evidence and the stacks of an incident as well.")
@click.option("--inject", is_flag=True, help="Attach in every rank, for a script that cannot be edited.")
@click.option(
    "--server",
    default="",
    help="URL of a server; else NCCLWATCH_SERVER, else one is started for this run. A job on several nodes then has "
    "the one that its agents start.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    on_hang: str | None,
    policy: Path | None,
    report: Path | None,
    verbose: bool,
    inject: bool,
    server: str,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND, and report on standard error what hangs it.

    The script that COMMAND runs must call ncclwatch.attach(), or --inject does it. Its output and its exit
    code stay as they are: ncclwatch run --report hang.json -- torchrun --nproc-per-node=8 train.py
    """
    named = not server and config.server_naming() == config.NAMED
    if named and tokens.may_read():
        server = config.server_url()
    try:
        urls.check(server, "--server")
        if tls.is_secure(server):
            tls.trust()  # a file of certificates that cannot be read is told before anything starts
        order = Order(
            command=command,
            policy=_usable(in_force(on_hang or "", policy)),
            on_hang=_said(on_hang or "", policy),
            server=server,
            token=token(),
            report=prepare(report) if report is not None else None,
            job=name_of(command, server),
            verbose=verbose,
            inject=inject,
            told_by_agents=not server and (named or is_part(command)),
        )
    except ConfigError as error:
        complain(error)
        sys.exit(EXIT_USAGE)
    sys.exit(_run(order))


def _usable(policy: Policy | None) -> Policy | None:
    """Return a policy whose hook, if it names one, can be run. Raises `ConfigError`."""
    if policy is not None and policy.hook and (found := problem(policy.hook)):
        raise ConfigError(f"the hook of the policy cannot be run here: {found}")
    return policy


def _said(on_hang: str, policy: Path | None) -> Mapping[str, str]:
    """Return what options say of hangs, as variables."""
    said = {config.ENV_ON_HANG: on_hang} if on_hang else {}
    return {**said, config.ENV_HANG_POLICY: str(policy.absolute())} if policy is not None else said


def _run(order: Order) -> int:
    try:
        if order.told_by_agents:
            return _told_by_agents(order)
        with EmbeddedServer() as own:
            url = order.server.rstrip("/")
            if not url:
                try:
                    with Progress("starting a server for this run", elsewhere=False):
                        own.start()
                    url = own.url
                    if not own.ready:
                        tell(NOT_READY)
                except NoServer as error:
                    tell(f"ncclwatch: {error}. The training runs, unwatched.\n")
            return _watched(order, url, None if order.server else own) if url else _unwatched(order)
    except CommandFailed as error:
        complain(error)
        if order.report is not None:
            order.report.discard()
        return error.exit_code


def _watched(order: Order, url: str, own: EmbeddedServer | None) -> int:
    naming = config.NAMED if own is None else config.OWN
    patience_s = ANSWER_S if own is None else ANSWER_OWN_S
    client = answering(url, order.token, patience_s, naming)
    before, blocked = Attempts(), None
    hooks = None
    if order.policy is not None and order.policy.hook:
        hooks = CommandHooks(order.policy, tell, of_several=bool(order.server))
    while True:
        following = Following(
            client,
            order.job,
            tell,
            own,
            policy=order.policy,
            keep_capture=keep_capture,
            hooks=hooks,
            before=before,
            verbose=order.verbose,
        )
        following.begin()
        # Before the thread that follows: it is forked.
        training = Training(order.command, _environment(order, url, len(before.hangs)), blocked)
        blocked = training.before
        following.start()
        code, wanted = _until_end(training, following)
        report = following.finish()
        if wanted is None or wanted.decision.action is not Action.RESTART:
            break
        if why_not := training.may_not_follow():
            tell(f"ncclwatch: not starting the command again: {why_not}\n")
            break
        before = following.and_before(wanted.hang)
        tell(f"ncclwatch: starting the command again, restart {len(before.hangs)}\n")
    if order.inject and not following.ranks_seen:
        tell(NOBODY)
    _write(order, report)
    if order.report is None and own is not None and following.told:
        _keep(order.job, report)
    return code if wanted is None else _EXITS.get(wanted.decision.action, EXIT_ABORTED)


def _until_end(training: Training, following: Following) -> tuple[int, Wanted | None]:
    """Wait until the command has ended, and end it for a hang if that is wanted.

    Returns its exit code, and why it was ended; None: it has ended by itself.
    """
    while (code := training.exit_code) is None:
        training.wait_a_little()
        wanted = following.wanted
        if wanted is not None and training.exit_code is None:
            tell(f"ncclwatch: ending the command ({wanted.decision.action.value}): {wanted.decision.reason}\n")
            for sentence in training.end():
                tell(f"ncclwatch: {sentence}\n")
            return EXIT_ABORTED, wanted
    # On several nodes another one may have acted on the same hang before, and so ended the command here.
    return code, following.decided() if code and not training.may_not_follow() else None


def _keep(job: str, report: bytes) -> None:
    """Keep the report of a server that ends now."""
    try:
        path = keep_report(job, report)
    except (OSError, ConfigError) as error:
        tell(f"ncclwatch: cannot keep the report ({error}); name a file with --report\n")
        return
    tell(f"ncclwatch: evidence and stacks: ncclwatch report {shlex.quote(str(path))}\n")


def _unwatched(order: Order) -> int:
    """Run the command without any server; the report then says that nothing was seen."""
    training = Training(order.command, {**os.environ, config.ENV_DISABLE: "1"})
    while training.exit_code is None:
        training.wait_a_little()
    _write(order, empty_report(order.job))
    return training.exit_code


def _told_by_agents(order: Order) -> int:
    """Run a job whose agents print the verdict: a part of one on several nodes, of which a server here would hear half.

    Or one whose server takes news with the token here, and answers nothing.
    """
    if order.report is not None:
        tell(NEEDS_SERVER)
    environ = {**os.environ, **order.on_hang}
    training = Training(order.command, injected(environ) if order.inject else environ)
    while training.exit_code is None:
        training.wait_a_little()
    if order.report is not None:
        order.report.discard()
    return training.exit_code


def _environment(order: Order, url: str, restarts: int) -> Mapping[str, str]:
    own = {config.ENV_SERVER: url, config.ENV_TERMINAL: "0", config.ENV_JOB: order.job}
    said = {**os.environ, **order.on_hang}.get(config.ENV_ON_HANG, "").strip()
    if said:  # or else the script may say so itself
        # What is done about a hang is done here, and not by the agents, but for what only they can do.
        own |= {config.ENV_ON_HANG: RAISE if said == RAISE else REPORT, config.ENV_HANG_POLICY: ""}
    if restarts:
        own[config.ENV_RESTARTS] = str(restarts)
    if not order.server:
        own[config.ENV_SERVER_OWN] = url
    environ = {**os.environ, **own}
    return injected(environ) if order.inject else environ


def _write(order: Order, report: bytes) -> None:
    if order.report is None:
        return
    try:
        order.report.write(report)
    except OSError as error:
        order.report.discard()
        tell(f"ncclwatch: cannot write the report to {order.report.path} ({error.strerror}); here it is:\n")
        tell(report.decode())
