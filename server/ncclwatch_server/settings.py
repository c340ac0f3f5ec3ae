"""Says what this server is told to be, by its command line and its environment."""

import ipaddress
import logging
import os
import pwd
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine import homes
from ncclwatch.contract.network import tokens
from ncclwatch_server.security.peers import Network
from ncclwatch_server.security.scopes import EVERYTHING, Access, Grant, Scope

log = logging.getLogger("ncclwatch.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """For how long incidents, and what jobs have taught, are kept."""

    days: float = 90.0
    incidents_per_job: int = 1000  # closed ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line decided."""

    store: str = ""  # SQLAlchemy URL; "": incidents are kept in memory
    grants: tuple[Grant, ...] = ()  # the tokens; without any no one has to show one
    hosts: frozenset[str] | None = None  # names this server answers to; None: any
    keeping: Keeping = Keeping()
    private: bool = False  # only for the user who starts it, tokens or not; without any token it always is
    users: frozenset[int] = frozenset()  # others of this machine who may connect to a private one
    trusted: tuple[Network, ...] = ()  # proxies that say truly for whom they ask
    remote: tuple[Grant, ...] = ()  # the tokens of agents of other nodes, who come by a socket of their own
    log_url: str = ""  # template of addresses of ranks' logs, see `ui.log_links`; "": pages link to none

    def access(self) -> Access:
        """Return who may do what."""
        return Access(self.grants)


_SCOPES = {
    config.ENV_TOKEN: EVERYTHING,
    config.ENV_AGENT_TOKEN: frozenset({Scope.AGENT}),
    config.ENV_VIEWER_TOKEN: frozenset({Scope.VIEWER}),
    config.ENV_OPERATOR_TOKEN: frozenset({Scope.OPERATOR, Scope.VIEWER}),
}


def read_grants(environ: Mapping[str, str] = os.environ, *, private: bool = False) -> tuple[Grant, ...]:
    """Return the tokens that agents, viewers and operators must show, none if none is set. Raises `ConfigError`.

    The `private` server of one user, which a job or its agent starts, finds the user's own tokens for other servers in
    its environment: each of them is good for everything.
    """
    found = [(variable, token) for variable in _SCOPES for token in tokens.read(variable, environ)]
    if private:
        return tuple(Grant(token=replace(token, bounds=tokens.UNBOUND), scopes=EVERYTHING) for _, token in found)
    for variable, token in found:
        if token.bounds != tokens.UNBOUND and variable != config.ENV_AGENT_TOKEN:
            raise ConfigError(
                f"{variable}: only tokens of agents can be bound to jobs, namespaces, hosts or a number of jobs, and "
                f"one is bound to {str(token.bounds) or 'a number'}; move it to {config.ENV_AGENT_TOKEN} or its _FILE"
            )
    return tuple(Grant(token=token, scopes=_SCOPES[variable]) for variable, token in found)


def read_remote_grants(host: str, *, ephemeral: bool, environ: Mapping[str, str] = os.environ) -> tuple[Grant, ...]:
    """Return the tokens of agents of other nodes, who come by an address of their own; none without one.

    Raises `ConfigError`: with such an address there must be one.
    """
    if not host:
        return ()
    found = tuple(
        Grant(token=token, scopes=frozenset({Scope.AGENT})) for token in tokens.read(config.ENV_AGENT_TOKEN, environ)
    )
    if not ephemeral or not found:
        raise ConfigError(
            f"--remote is for a server that an agent starts for one job: it needs --ephemeral, and a token in "
            f"{config.ENV_AGENT_TOKEN}. For a server of its own use --host and --tls-cert"
        )
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, guarded: bool) -> None:
    """Refuse an address that others can reach while no token protects it."""
    if not guarded and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached by other machines and no token is set; put one into {config.ENV_TOKEN} "
            f"or {config.ENV_TOKEN_FILE} (here and on the nodes), or listen on 127.0.0.1"
        )


def check_strength(grants: Iterable[Grant], host: str, *, private: bool = False) -> None:
    """Refuse tokens that can be guessed. Raises `ConfigError`.

    On the loopback address too: whoever has a login there can guess. Only the `private` server of one user, which finds
    its tokens in a job's environment and keeps nothing, goes on with a warning where none but this machine reaches it.
    """
    weak = [problem for grant in grants if (problem := tokens.weakness(grant.token))]
    if not weak:
        return
    if not private or not is_loopback(host):
        raise ConfigError(f"{weak[0]}; make a good one with: {tokens.MAKE_ONE}")
    log.warning("%s; make a good one with: %s", weak[0], tokens.MAKE_ONE)


def own_names(allowed: Iterable[str] = ()) -> frozenset[str]:
    """Return the names under which a server that asks for no token answers, addresses apart.

    A page of a stranger can let a name of its own lead to 127.0.0.1, and then read as if it were ours.
    """
    here = {"localhost", socket.gethostname(), socket.getfqdn()}
    return frozenset(name.lower().rstrip(".") for name in (*here, *allowed) if name)


def user_ids(named: Iterable[str]) -> frozenset[int]:
    """Return the users of this machine that are named, by name or number. Raises `ConfigError`."""
    found = set()
    for name in named:
        try:
            found.add(int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid)
        except (KeyError, ValueError) as error:
            raise ConfigError(f"--allow-user {name!r}: this machine knows no such user; write its number") from error
    return frozenset(found)


def store_url(named: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the SQLAlchemy URL of a store given as URL or path; "" stands for the default file."""
    if "://" in named:
        return named
    if named:
        return f"sqlite:///{homes.expanded(named).absolute()}"
    place, makeshift = homes.state_dir(environ)
    if makeshift:
        homes.make_own(place)
        log.warning(
            "uid %d has no home to keep incidents in: they go to %s; --store names a better place", os.getuid(), place
        )
    return f"sqlite:///{place / 'incidents.db'}"
