"""Keeps user names, passwords and tokens that stand in a URL from being shown.

No part of ncclwatch shows a user name or a password of a server's URL to that server: a token does what they would. So
the command line refuses such a URL. Ranks and agents leave that part out before they keep the URL or dial it, by
`config.without_credentials`: training must not end because of it.
"""

from ncclwatch.contract.errors import ConfigError

HIDDEN = "***"
_SHORT = 4  # characters; what is as short as "/" stands for no secret, and everywhere


def has_credentials(url: str) -> bool:
    """Whether a user name or a password stands in a URL. A password may hold a "/": any "@" tells."""
    return "@" in url


def check(url: str, where: str) -> str:
    """Return the URL of a server. Raises `ConfigError`, which does not repeat it, where credentials are in it."""
    if has_credentials(url):
        raise ConfigError(
            f"{where} names the server with a user name or a password in its URL (before an @), which nothing uses; "
            "write only http://HOST:PORT and put a token into NCCLWATCH_TOKEN or NCCLWATCH_TOKEN_FILE"
        )
    return url


def hidden(text: str, *secrets: str) -> str:
    """Return a text in which these are not, such as an answer that repeats the URL it was asked by."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORT:
            text = text.replace(secret, HIDDEN)
    return text
