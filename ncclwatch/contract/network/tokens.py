"""Reads tokens as they are written down, and says which one this side shows.

A token is one word. A variable or a file may hold several, each on a line of its own, so that a new one
can be handed out before the old one ends. Behind a token may stand whose it is and when it ends:

    WORD name=alice until=2027-01-31T12:00Z

An agent's token may also be bound to jobs, hosts or namespaces (a job's name up to its first "/"), each one or several
separated by commas, with * and ? as in a shell, and to a number of jobs and of ranks at a time:

    WORD name=team-a namespace=team-a host=gpu-a-* jobs=50 ranks=20000
    WORD name=bob job=bob-*,eval-nightly

A token that is bound to anything has a share of a server; jobs= and ranks= say another one, larger or smaller.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path

from ncclwatch.contract import config, job_names
from ncclwatch.contract.errors import ConfigError

TOKENS_MAX = 1000  # in one file
_FILE = "_FILE"
_NAMES = (config.ENV_TOKEN, config.ENV_AGENT_TOKEN, config.ENV_VIEWER_TOKEN, config.ENV_OPERATOR_TOKEN)
_VARIABLES = frozenset((*_NAMES, *(f"{name}{_FILE}" for name in _NAMES)))
CHARS_MIN = 16  # of a token that a server takes
DISTINCT_MIN = 6  # characters of it
MAKE_ONE = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
_DIGITS_MAX = 9  # of a number of jobs or ranks
_WORDS = frozenset({"name", "until", "job", "namespace", "host", "jobs", "ranks"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What an agent's token is bound to. () is anything."""

    jobs: tuple[str, ...] = ()  # patterns of names
    namespaces: tuple[str, ...] = ()  # the same of what stands before the first "/" of a name
    hosts: tuple[str, ...] = ()  # the same of what an agent says its host is called
    jobs_max: int | None = None  # at a time
    ranks_max: int | None = None  # the same of ranks

    def allow_job(self, name: str) -> bool:
        """Whether a job of this name is within."""
        return _matches(self.jobs, name) and _matches(self.namespaces, job_names.namespace(name))

    @property
    def leave_jobs_open(self) -> bool:
        """Whether they are bounds of anything but names of jobs."""
        return self != UNBOUND and not self.jobs and not self.namespaces

    def allow_host(self, host: str) -> bool:
        """Whether agents on this host are."""
        return _matches(self.hosts, host)

    def __str__(self) -> str:
        """Return them as they are written down."""
        named = (("job", self.jobs), ("namespace", self.namespaces), ("host", self.hosts))
        return " ".join(f"{what}={','.join(patterns)}" for what, patterns in named if patterns)


UNBOUND = Bounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token, as it is written down."""

    secret: str
    name: str = ""  # whose it is
    until: float | None = None  # seconds since 1970 from which it counts no more
    bounds: Bounds = UNBOUND

    def __repr__(self) -> str:
        """Say whose it is; the secret itself must not get into logs."""
        return f"Token(name={self.name!r}, until={self.until})"


def shown_by_agent(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token an agent shows to its server, "" if none is set. Raises `ConfigError`."""
    return _shown((config.ENV_AGENT_TOKEN, config.ENV_TOKEN), environ)


def shown_by_reader(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token that the command line shows, the most able one; "" if none is set. Raises `ConfigError`."""
    # An agent's may do where a job has its own server, and elsewhere the answer says what is wrong with it.
    able = (config.ENV_OPERATOR_TOKEN, config.ENV_VIEWER_TOKEN, config.ENV_TOKEN, config.ENV_AGENT_TOKEN)
    return _shown(able, environ)


def may_read(environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether there is another token than one for agents, which reads nothing, or none at all."""
    set_here = {name.removesuffix(_FILE) for name in _VARIABLES if environ.get(name, "").strip()}
    return set_here != {config.ENV_AGENT_TOKEN}


def without(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a server that one of our programs starts for its user, whom the kernel tells it.

    Tokens in ours are for servers that somebody named, and would have to be shown to this one.
    """
    return {name: value for name, value in environ.items() if name not in _VARIABLES}


def read(variable: str, environ: Mapping[str, str] = os.environ) -> tuple[Token, ...]:
    """Return the tokens in a variable, or in the file that VARIABLE_FILE names. Raises `ConfigError`."""
    said, path = environ.get(variable, "").strip(), environ.get(variable + _FILE, "").strip()
    if said or not path:
        return parse(said, variable)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the token in {path} ({error}); correct {variable}{_FILE} or unset it"
        ) from error
    found = parse(text, path)
    if not found:
        raise ConfigError(f"{path} is empty; write a token into it or unset {variable}{_FILE}")
    return found


def parse(text: str, where: str) -> tuple[Token, ...]:
    """Return the tokens of a text, one a line. Raises `ConfigError`, which never quotes a secret."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if len(lines) > TOKENS_MAX:
        raise ConfigError(f"{where} holds {len(lines)} tokens; at most {TOKENS_MAX} are taken")
    return tuple(_parse_line(line, f"{where}, token {number}") for number, line in enumerate(lines, 1))


def weakness(token: Token) -> str:
    """Return what makes a token too easy to guess, "" if nothing does. Never quotes it."""
    whose = f"the token of {token.name}" if token.name else "a token"
    if len(token.secret) < CHARS_MIN:
        return f"{whose} has {len(token.secret)} characters and can be guessed; at least {CHARS_MIN} are wanted"
    distinct = len(set(token.secret))
    if distinct < DISTINCT_MIN:
        return f"{whose} has only {distinct} different characters and can be guessed"
    return ""


def _parse_line(line: str, where: str) -> Token:
    secret, *rest = line.split()
    said = dict(word.partition("=")[::2] for word in rest)
    if len(said) < len(rest) or not said.keys() <= _WORDS or not all(said.values()):
        raise ConfigError(
            f"{where}: behind the token only {', '.join(sorted(_WORDS))}, each once and with =VALUE, may stand"
        )
    return Token(
        secret=secret,
        name=said.get("name", "")[:100],
        until=_moment(said["until"], where) if "until" in said else None,
        bounds=Bounds(
            jobs=_patterns(said.get("job", "")),
            namespaces=_patterns(said.get("namespace", "")),
            hosts=_patterns(said.get("host", "")),
            jobs_max=_number("jobs", said, where),
            ranks_max=_number("ranks", said, where),
        ),
    )


def _number(what: str, said: Mapping[str, str], where: str) -> int | None:
    most = said.get(what, "")
    if most and not (most.isascii() and most.isdigit() and len(most) <= _DIGITS_MAX):
        raise ConfigError(f"{where}: {what}={most[:40]} is no number of {what}; write {what}=50")
    return int(most) if most else None


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _moment(text: str, where: str) -> float:
    """Return seconds since 1970. A time without a zone is UTC: server and nodes must mean the same."""
    try:
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise ConfigError(f"{where}: until={text[:40]} is no time; write until=2027-01-31T12:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _shown(variables: tuple[str, ...], environ: Mapping[str, str]) -> str:
    for variable in variables:
        tokens = read(variable, environ)
        if tokens:
            valid = [token for token in tokens if token.until is None or token.until > time.time()]
            # One that has ended is shown all the same: the server's answer says so.
            return (valid or list(tokens))[0].secret
    return ""
