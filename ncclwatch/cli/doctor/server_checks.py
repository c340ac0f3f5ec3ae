"""Checks that the server of this environment answers and takes the token, and that its clock and ours agree."""

import os
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from ncclwatch.cli.client.http import ServerUnreachable, dial, token
from ncclwatch.cli.doctor.check import Check, failed, passed, warned
from ncclwatch.contract import config
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.network.peer_uid import NotOurs
from ncclwatch.contract.network.urls import has_credentials
from ncclwatch.contract.words.text import seconds_words

CLOCK_S_MAX = 5.0  # a server tells whole seconds; torchrun's rendezvous takes 15 s for a dead node
_NO_PASSWORD = f"write only http://HOST:PORT into it, and a token into {config.ENV_TOKEN}"
_START = f"start ncclwatch-server there, or correct {config.ENV_SERVER}"


def server(environ: Mapping[str, str] = os.environ) -> Check:
    """Look for the server, and show it the token."""
    name, url = "server", config.server_url(environ)
    if has_credentials(environ.get(config.ENV_SERVER, "")):
        return failed(name, f"{config.ENV_SERVER} holds a user name or a password, which nothing uses", _NO_PASSWORD)
    try:
        client = dial(environ=environ)
        client.check()
    except ServerUnreachable as error:
        if isinstance(error.__cause__, NotOurs):
            return warned(name, str(error), f"name the server in {config.ENV_SERVER}; else the agent starts its own")
        if config.server_naming(environ) == config.NAMED:
            return failed(name, f"{config.ENV_SERVER} names it, and {error}", _START)
        return passed(name, "none is named, and none answers; on one machine the agent starts its own")
    except NcclwatchError as error:
        return failed(name, str(error), f"correct {config.ENV_TOKEN_FILE}")
    try:
        client.jobs()
    except NcclwatchError as error:
        return failed(
            name, str(error), f"put the server's token into {config.ENV_TOKEN}, here and in the jobs' environment"
        )
    return passed(name, f"{url}{', which takes the token' if token(environ) else ''}")


def clock(environ: Mapping[str, str] = os.environ) -> Check:
    """Compare this host's clock with the server's. It is told; nothing is judged by it."""
    name = "clock"
    try:
        before = time.time()
        said = parsedate_to_datetime(dial(environ=environ).date()).timestamp()
        after = time.time()
    except (TypeError, ValueError, NcclwatchError):
        return passed(name, "no server to compare it with")
    return judged_clock(offset_s((before, after), said))


def offset_s(asked: tuple[float, float], said: float) -> float:
    """Return by how much our clock is certainly ahead of one that told the whole second `said` in between."""
    before, after = asked
    return max(0.0, before - (said + 1.0)) or min(0.0, after - said)


def judged_clock(ahead_s: float) -> Check:
    """Say whether a host's clock is near enough to the server's."""
    if abs(ahead_s) <= CLOCK_S_MAX:
        return passed("clock", "agrees with the server's within a few seconds")
    side = "ahead of" if ahead_s > 0 else "behind"
    return warned(
        "clock",
        f"{seconds_words(abs(ahead_s))} {side} the server's: logs do not line up, and torchrun takes nodes that are "
        "15 s apart for dead",
        "let chrony or systemd-timesyncd set it (`timedatectl`)",
    )
