"""Finds which value each setting has and where it came from. Pure, but for reading a token's file and the policy.

The list of variables is that of `contract.config`; this module adds what each means for people.
"""

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.contract import config, job_names
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.network.urls import has_credentials
from ncclwatch.contract.on_hang import hook
from ncclwatch.contract.on_hang.policy import stated

SCHEMA = 1
HIDDEN = "(hidden)"
DEFAULT = "default"
_FILE = "_FILE"

_SCOPED = (config.ENV_AGENT_TOKEN, config.ENV_VIEWER_TOKEN, config.ENV_OPERATOR_TOKEN)

# What each variable means, and its value where nobody sets it. "" stands for none.
_MEANINGS: dict[str, tuple[str, str]] = {
    config.ENV_JOB: ("name of the job", ""),
    config.ENV_NAMESPACE: ("namespace of all jobs that are started here", ""),
    config.ENV_HOST: ("what this host is called in verdicts", "its host name"),
    config.ENV_SERVER: ("URL of the server that agents and this command dial, or of several: URL,URL", ""),
    config.ENV_SERVER_OWN: ("set by `ncclwatch run` for its own server: that URL must prove whose it is", ""),
    config.ENV_SHARE: ("0: no server is started for a job on several nodes", "1"),
    config.ENV_DISABLE: ("1: attach() does nothing", "0"),
    config.ENV_ANY_TORCH: ("1: attach() also to a torch older than any it was tried with", "0"),
    config.ENV_AGENT: ("0: ranks start no agent", "1"),
    config.ENV_RUNTIME_DIR: ("where ranks write their rings: in it, a directory for each user", "/dev/shm"),
    config.ENV_NATIVE: (
        "0: record in Python alone; 1: surely with the native recorder; without-torch: its part that knows no torch",
        "what has been built of it",
    ),
    config.ENV_NATIVE_DIR: ("where the native recorder is built and looked for", "~/.cache/ncclwatch"),
    config.ENV_WITNESS: ("0: ranks start no worker server, nobody asks torch's Flight Recorder", "1"),
    config.ENV_LABELS: ("labels of the job, such as team=vision,run=42", ""),
    config.ENV_RESTARTS: ("set by `ncclwatch run`: how often it has started this command again", "0"),
    config.ENV_ON_HANG: ("what is done about a hang: report, capture, raise, abort, restart or policy", "report"),
    config.ENV_HANG_POLICY: ("file with the policy for hangs: see ncclwatch config policy", "the default policy"),
    config.ENV_NOTES: ("1: verdicts are noted in the open runs of W&B, MLflow and TensorBoard", "0"),
    config.ENV_CAPTURES: ("directory for the captures of `ncclwatch run`", "captures in the state directory"),
    config.ENV_TERMINAL: ("0: no verdict on the job's terminal", "1"),
    config.ENV_TOKEN: ("bearer token of a protected server", ""),
    config.ENV_TOKEN_FILE: ("file with that token", ""),
    config.ENV_AGENT_TOKEN: ("token of agents only", ""),
    config.ENV_VIEWER_TOKEN: ("token of those who only read", ""),
    config.ENV_OPERATOR_TOKEN: ("token of those who also ask for stacks and delete", ""),
    config.ENV_CA_FILE: ("certificates that agents and the command line trust, for https:// servers", ""),
    config.ENV_NOTIFY: ("file with the targets of a server's alerts", ""),
    **{f"{name}_FILE": (f"file with what {name} may hold", "") for name in _SCOPED},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as it is now."""

    name: str  # the variable
    value: str  # "" if there is none
    origin: str  # the variable, a file, what the launcher has set, or "default"
    is_set: bool  # somebody has set it
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """All settings, and what is wrong with them."""

    schema: int
    settings: tuple[Setting, ...]
    problems: tuple[str, ...]


def in_force(environ: Mapping[str, str] = os.environ) -> InForce:
    """Return the settings that a rank, an agent or a command started in this environment would have."""
    settings = tuple(_setting(name, environ) for name in sorted(variables()))
    return InForce(schema=SCHEMA, settings=settings, problems=tuple(_problems(environ)))


def variables() -> frozenset[str]:
    """Return the names of all variables that ncclwatch reads."""
    named = {value for name, value in vars(config).items() if name.startswith("ENV_") and isinstance(value, str)}
    return frozenset(named | {f"{name}{_FILE}" for name in _SCOPED})


def _setting(name: str, environ: Mapping[str, str]) -> Setting:
    meaning, default = _MEANINGS.get(name, ("", ""))
    value, origin = environ.get(name, "").strip(), "environment"
    fallback = _FALLBACKS.get(name)
    if not value:
        value, origin = fallback(environ) if fallback is not None else (default, DEFAULT)
    if _is_secret(name):
        value = HIDDEN if value else ""
    is_set = origin != DEFAULT
    shown = config.without_credentials(value) if "://" in value or name == config.ENV_SERVER else value
    return Setting(
        name=name,
        value=shown,
        origin=origin,
        is_set=is_set,
        meaning=meaning,
    )


def _server(environ: Mapping[str, str]) -> tuple[str, str]:
    master = environ.get("MASTER_ADDR")
    return config.server_url(environ), f"MASTER_ADDR, port {config.DEFAULT_PORT}" if master else DEFAULT


def _job(environ: Mapping[str, str]) -> tuple[str, str]:
    for variable in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"):
        if environ.get(variable, "none") not in ("", "none"):
            return job_names.from_environment(environ), variable
    return job_names.from_environment(environ), DEFAULT


def _token(environ: Mapping[str, str]) -> tuple[str, str]:
    path = environ.get(config.ENV_TOKEN_FILE, "").strip()
    return ("set", f"file {path}") if path else ("", DEFAULT)


_FALLBACKS: dict[str, Callable[[Mapping[str, str]], tuple[str, str]]] = {
    config.ENV_SERVER: _server,
    config.ENV_JOB: _job,
    config.ENV_TOKEN: _token,
}


def _problems(environ: Mapping[str, str]) -> Iterator[str]:
    known = variables()
    if has_credentials(environ.get(config.ENV_SERVER, "")):
        yield f"{config.ENV_SERVER} holds a user name or a password, which nothing uses; set {config.ENV_TOKEN} instead"
    for name in sorted(environ):
        if name.startswith("NCCLWATCH_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            yield f"{name} is set and nothing reads it" + (f"; did you mean {near[0]}?" if near else "")
    yield from _policy_problems(environ)
    for name in sorted(known):
        path = environ.get(name, "").strip() if name.endswith(_FILE) else ""
        if path:
            yield from _unreadable(name, path)


def _policy_problems(environ: Mapping[str, str]) -> Iterator[str]:
    try:
        found = stated(environ=environ)
    except ConfigError as error:
        yield str(error)
        return
    if found.hook and (problem := hook.problem(found.hook)):
        yield f"{config.ENV_HANG_POLICY}: the hook of the policy cannot be run here: {problem}"


def _unreadable(name: str, path: str) -> Iterator[str]:
    try:
        with Path(path).open("rb") as file:
            empty = not file.read(4096).strip()
    except OSError as error:
        yield f"{name} names {path}, which cannot be read ({error.strerror}); correct it or unset {name}"
        return
    if empty:
        yield f"{name} names {path}, which is empty; write the secret into it or unset {name}"


def _is_secret(name: str) -> bool:
    words = name.split("_")
    return not name.endswith(_FILE) and any(word in words for word in ("TOKEN", "SECRET", "PASSWORD", "KEY"))
