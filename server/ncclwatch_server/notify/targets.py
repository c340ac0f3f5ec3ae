"""Reads who is to be told from one TOML file of the administrator's own; nothing else can name targets.

`ncclwatch-server --notify FILE`, or NCCLWATCH_NOTIFY=FILE. A secret may stand in the file, or the file says where it
is: `url = {file = "/run/secrets/slack"}` or `url = {env = "SLACK_URL"}`.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ncclwatch.contract import config, job_labels
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine import homes
from ncclwatch.contract.model.verdict import Severity
from ncclwatch_server.incidents.book import Incident

TARGETS_MAX = 32
NAME_MAX = 40
FILE_BYTES_MAX = 256 * 1024
_SECRET_PREFIX = "whsec_"


class Asked(str, Enum):
    """The least urgent that a target wants to hear of. Nobody can ask for what is only worth knowing."""

    CRITICAL = "critical"
    WARNING = "warning"


class Tls(str, Enum):
    """How a mail server is spoken to."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


class Elsewhere(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says where a value is that should not stand in the file."""

    file: str = ""
    env: str = ""


Secret = str | Elsewhere


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all targets have."""

    name: str = ""  # in the log, the figures and `ncclwatch notify test`; default: its kind
    severity: Asked = Asked.CRITICAL
    jobs: tuple[str, ...] = ("*",)  # patterns of job names, as a shell's
    users: tuple[str, ...] = ("*",)  # the same of those whose jobs they are
    labels: tuple[str, ...] = ()  # that a job must have: NAME, or NAME=PATTERN

    @property
    def kind(self) -> str:
        """Return the word that stands for it in the file."""
        return str(self.__struct_config__.tag)

    def wants(self, incident: Incident) -> bool:
        """Whether it is to be told of an incident at all."""
        urgent = incident.verdict.severity
        if urgent is Severity.INFO or (urgent is Severity.WARNING and self.severity is Asked.CRITICAL):
            return False
        return (
            any(fnmatchcase(incident.job, each) or fnmatchcase(incident.key.name, each) for each in self.jobs)
            and any(fnmatchcase(incident.user, each) for each in self.users)
            and job_labels.match(incident.labels, self.labels)
        )


class Webhook(Target, tag="webhook", frozen=True, kw_only=True):
    """Any HTTP receiver, which gets the report on the job, signed."""

    url: Secret
    secret: Secret  # "whsec_" and base64, or any other text


class Slack(Target, tag="slack", frozen=True, kw_only=True):
    """A Slack incoming webhook."""

    url: Secret


class PagerDuty(Target, tag="pagerduty", frozen=True, kw_only=True):
    """A PagerDuty service, by its Events API v2."""

    routing_key: Secret
    url: Secret = "https://events.pagerduty.com/v2/enqueue"


class Alertmanager(Target, tag="alertmanager", frozen=True, kw_only=True):
    """A Prometheus Alertmanager, by its API v2."""

    url: Secret  # of the Alertmanager itself, without /api/v2
    token: Secret = ""  # bearer token, where one is wanted


class Mail(Target, tag="email", frozen=True, kw_only=True):
    """A mail server."""

    server: str  # host, or host:port
    sender: str = msgspec.field(name="from")
    to: tuple[str, ...]
    tls: Tls = Tls.STARTTLS
    username: Secret = ""
    password: Secret = ""


class Apprise(Target, tag="apprise", frozen=True, kw_only=True):
    """Whatever else the library Apprise can reach: "discord://...", "msteams://...", "ntfy://..."."""

    url: Secret


AnyTarget = Webhook | Slack | PagerDuty | Alertmanager | Mail | Apprise


class Targets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    link: str = ""  # where people reach this server: "https://ncclwatch.example.com"
    target: tuple[AnyTarget, ...] = ()


def read_targets(named: str = "", environ: Mapping[str, str] = os.environ) -> Targets:
    """Return the targets of the file that the flag or the environment names, none without. Raises `ConfigError`."""
    path = named or environ.get(config.ENV_NOTIFY, "").strip()
    if not path:
        return Targets()
    try:
        data = _read(homes.expanded(path))
        found = msgspec.toml.decode(data, type=Targets)
    except OSError as error:
        raise ConfigError(
            f"cannot read the targets of alerts in {path} ({error.strerror}); correct --notify"
        ) from error
    except ImportError as error:  # tomllib came with Python 3.11
        raise ConfigError(f"to read {path} this Python needs the package tomli: pip install tomli") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} does not name targets of alerts: {error}; correct it") from error
    return _checked(found, path, environ)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX)


def _checked(found: Targets, path: str, environ: Mapping[str, str]) -> Targets:
    """Return the targets with their names and secrets filled in. Raises `ConfigError`."""
    if len(found.target) > TARGETS_MAX:
        raise ConfigError(f"{path} names {len(found.target)} targets; {TARGETS_MAX} are possible")
    targets: list[AnyTarget] = []
    for target in found.target:
        name = target.name or target.kind
        where = f"{path}, target {name!r}"
        if len(name) > NAME_MAX or not name.isprintable():
            raise ConfigError(f"{where}: a name has up to {NAME_MAX} printable characters")
        if any(each.name == name for each in targets):
            raise ConfigError(f"{path} names two targets {name!r}; give each a name of its own")
        targets.append(_filled(target, name, where, environ))
    if found.link:
        _check_url(found.link, f"{path}, link")
    return msgspec.structs.replace(found, target=tuple(targets), link=found.link.rstrip("/"))


def _filled(target: AnyTarget, name: str, where: str, environ: Mapping[str, str]) -> AnyTarget:
    changes: dict[str, str] = {"name": name}
    for field in target.__struct_fields__:
        value = getattr(target, field)
        if isinstance(value, Elsewhere):
            changes[field] = _fetch(value, f"{where}, {field}", environ)
    filled = msgspec.structs.replace(target, **changes)
    if isinstance(filled, (Webhook, Slack, PagerDuty, Alertmanager)):
        _check_url(plain(filled.url), f"{where}, url")
    if isinstance(filled, Webhook):
        signing_key(plain(filled.secret), where)
    if isinstance(filled, PagerDuty) and not filled.routing_key:
        raise ConfigError(f"{where}: routing_key is empty")
    if isinstance(filled, Mail):
        _check_mail(filled, where)
    return filled


def _fetch(value: Elsewhere, where: str, environ: Mapping[str, str]) -> str:
    """Return a value that stands elsewhere. Raises `ConfigError`."""
    if bool(value.file) == bool(value.env):
        raise ConfigError(f"{where}: say either file or env")
    if value.env:
        found = environ.get(value.env, "").strip()
        if not found:
            raise ConfigError(f"{where}: the variable {value.env} is not set")
        return found
    try:
        found = homes.expanded(value.file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot read {value.file} ({error})") from error
    if not found:
        raise ConfigError(f"{where}: {value.file} is empty")
    return found


def plain(value: Secret) -> str:
    """Return a value that has been filled in."""
    if isinstance(value, Elsewhere):
        raise TypeError("a target was used before its secrets were read")
    return value


def _check_url(url: str, where: str) -> None:
    # The URL itself may be the secret: it is never repeated.
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url:
        raise ConfigError(f"{where} is no URL that begins with http:// or https://")


def _check_mail(target: Mail, where: str) -> None:
    mail_server(target, where)
    if not target.to or any("@" not in each or not each.isprintable() for each in (target.sender, *target.to)):
        raise ConfigError(f"{where}: `from` and `to` want mail addresses")
    if bool(target.username) != bool(target.password):
        raise ConfigError(f"{where}: username and password go together")
    if target.username and target.tls is Tls.NONE:
        raise ConfigError(f'{where}: the password would travel in the clear; set tls = "starttls" or "tls"')


def mail_server(target: Mail, where: str = "") -> tuple[str, int]:
    """Return host and port of a mail server. Raises `ConfigError`."""
    try:
        parts = urlsplit(f"//{target.server}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host:
        raise ConfigError(f"{where}: {target.server!r} is no mail server; write host or host:port")
    return host, port or {Tls.STARTTLS: 587, Tls.TLS: 465, Tls.NONE: 25}[target.tls]


def signing_key(secret: str, where: str = "") -> bytes:
    """Return the key that signs webhooks, as Standard Webhooks has it. Raises `ConfigError`."""
    if not secret.startswith(_SECRET_PREFIX):
        key = secret.encode()
    else:
        try:
            key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigError(f"{where}: what follows {_SECRET_PREFIX} in the secret is not base64") from error
    if len(key) < 16:
        raise ConfigError(f"{where}: the secret is shorter than 16 bytes; make one with: openssl rand -hex 32")
    return key
