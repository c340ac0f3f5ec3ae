"""Decides whom this side believes when it dials an https:// server: the system's authorities, or those in one file."""

import os
import ssl
from collections.abc import Mapping

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError


def is_secure(url: str) -> bool:
    """Whether a server's address asks for TLS."""
    return url.lower().startswith(("https://", "wss://"))


def trust(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """Return whom to believe: host names are checked, always. Raises `ConfigError`."""
    path = environ.get(config.ENV_CA_FILE, "").strip()
    try:
        return ssl.create_default_context(cafile=path or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"cannot read certificates in {path} ({error}); correct {config.ENV_CA_FILE}, "
            "which names a PEM file of the authorities to trust, or unset it"
        ) from error


def distrust_words(url: str, error: BaseException) -> str:
    """Return the sentence for a server that cannot prove who it is, "" if the error is about something else."""
    found: BaseException | None = error
    for _ in range(5):  # libraries wrap it
        if found is None or isinstance(found, ssl.SSLCertVerificationError):
            break
        reason = getattr(found, "reason", None)
        found = reason if isinstance(reason, BaseException) else found.__cause__ or found.__context__
    if not isinstance(found, ssl.SSLCertVerificationError):
        return ""
    why = found.verify_message or "it does not fit"
    return (
        f"the certificate of {url} is not trusted ({why}); put the certificate of its authority into a file, "
        f"name it in {config.ENV_CA_FILE}, and dial the server by a name that its certificate has"
    )
