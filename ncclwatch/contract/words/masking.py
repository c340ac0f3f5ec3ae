"""Cuts secrets out of lines of source and command lines, before they leave the machine."""

import re

_WHOLE = "(?<![a-z]){}(?![a-z])"  # a word of its own, or a part of a name: HF_TOKEN, but not tokens or tokenizer
_NAMES = "|".join(
    (
        "passw|passphrase|secret|credential|api[_-]?key|(?:access|private)[_-]?key|auth|login|bearer|signature|webhook",
        *(_WHOLE.format(word) for word in ("token", "pwd", "creds?", "sig")),
        "(?-i:(?<=[a-z])(?:Token|Key)(?![a-z]))",  # hfToken
    )
)
# What is a secret by itself: keys of Hugging Face, GitHub, GitLab, OpenAI, AWS and Slack, a hook of Slack, a JWT.
_SHAPES = re.compile(
    r"(?<![\w-])(?:hf_[a-zA-Z0-9]{20,}|gh[pousr]_[a-zA-Z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w.-]{8,})|(?<=hooks\.slack\.com/)[\w/]+"
)
_SECRET = re.compile(rf"{_NAMES}|://[^/\s]*@", re.IGNORECASE)
_KEY = re.compile("|".join((_NAMES, *(_WHOLE.format(word) for word in ("key", "pass", "pw")))), re.IGNORECASE)
_QUOTED = re.compile(r"""(["'])(?:\\.|(?!\1).)*(\1|$)""")  # one that was cut short ends with the line
_COMMENT = re.compile(r"#.*")
_CREDENTIALS = re.compile(r"://[^/\s]*@")
_OPTION = re.compile(r"--\S|-[a-z](?:$|=)", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"[+~]*[a-z_][\w./-]*=[^=]", re.IGNORECASE)
# Within a value: an item of a list of assignments, of a query, of JSON, or a header.
_INNER = re.compile(rf"""(?<![\w-])([\w-]*(?:{_KEY.pattern})[\w-]*["']?[:=])(?!//).*""", re.IGNORECASE)
CUT = "…"


def names_secret(text: str) -> bool:
    """Whether source text speaks of a secret."""
    return _SECRET.search(text) is not None


def masked_line(line: str) -> str:
    """Return a line of source: where it speaks of a secret, without what it has in quotes, and without its comment."""
    if names_secret(line):
        line = without_comment(_QUOTED.sub(rf"\g<1>{CUT}\g<2>", line))
    return _SHAPES.sub(CUT, line)


def without_comment(line: str) -> str:
    """Return a line of source, of which all texts were cut, without what its comment says."""
    return _COMMENT.sub(f"# {CUT}", line)


def masked_command(words: list[str]) -> str:
    """Return a command line, without the values of options and variables that speak of a secret.

    Where a value ends that has spaces in it is not known: all is cut up to the next option or assignment. The first
    word of a value is never taken for an assignment: base64 ends with "=".
    """
    shown: list[str] = []
    secret = first = False  # whether a value is cut; whether nothing of it has come yet
    for word in words:
        name, equals, value = word.partition("=")
        option = bool(_OPTION.match(word))
        if secret and not option and (first or not _ASSIGNMENT.match(word)):
            if not shown[-1].endswith(CUT):
                shown.append(CUT)
            first = False
            continue
        begins = option or bool(equals)
        if begins and _KEY.search(name) and "://" not in name:
            secret, first = True, not value
            shown.append(f"{name}={CUT}" if value else word)
            continue
        if value.startswith("-") and _KEY.search(value):  # options for another program: --args="--token x"
            secret, first = True, True
            shown.append(f"{name}={CUT}")
            continue
        masked = _INNER.sub(rf"\g<1>{CUT}", word)
        secret, first = masked != word, masked != word and word.endswith((":", "="))
        shown.append(_SHAPES.sub(CUT, _CREDENTIALS.sub(f"://{CUT}@", masked)))
    return " ".join(shown)
