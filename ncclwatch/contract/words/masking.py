"""Cuts secrets out of lines of source and command lines, before they leave the machine."""

import re

_SECRET = re.compile(
    r"passw|secret|(?<![a-z])token(?![a-z])|credential|api_?key|access_?key|auth|login|://[^/\s]*@", re.IGNORECASE
)
_KEY = re.compile(_SECRET.pattern + r"|(?<![a-z])key(?![a-z])", re.IGNORECASE)
_QUOTED = re.compile(r"""(["'])(?:\\.|(?!\1).)*\1""")
_CREDENTIALS = re.compile(r"://[^/\s]*@")
CUT = "…"


def names_secret(text: str) -> bool:
    """Whether source text speaks of a secret."""
    return _SECRET.search(text) is not None


def masked_line(line: str) -> str:
    """Return a line of source: where it speaks of a secret, without what it has in quotes."""
    return _QUOTED.sub(rf"\g<1>{CUT}\g<1>", line) if names_secret(line) else line


def masked_command(words: list[str]) -> str:
    """Return a command line, without the values of options and variables that speak of a secret.

    Where a value ends that has spaces in it is not known: all is cut up to the next option or assignment.
    """
    shown: list[str] = []
    secret = False
    for word in words:
        name, equals, _ = word.partition("=")
        if not word.startswith("-") and not equals:
            if not secret:
                shown.append(_CREDENTIALS.sub(f"://{CUT}@", word))
            elif not shown[-1].endswith(CUT):
                shown.append(CUT)
            continue
        secret = bool(_KEY.search(name))
        shown.append(f"{name}={CUT}" if secret and equals else _CREDENTIALS.sub(f"://{CUT}@", word))
    return " ".join(shown)
