"""Puts a verdict into words for a note."""

from ncclwatch.contract.on_hang.notice import HangVerdict

LABEL = "ncclwatch.verdict"


def title(verdict: HangVerdict) -> str:
    """Return a headline."""
    return f"ncclwatch: the job hangs ({verdict.cause})"


def text(verdict: HangVerdict) -> str:
    """Return what is wrong, what to do, and where there is more."""
    about = f"{verdict.cause}, {verdict.certainty}; ncclwatch report {verdict.incident}"
    return " ".join(filter(None, (verdict.sentence, verdict.advice, f"({about})")))


def appended(before: object, verdict: HangVerdict) -> str:
    """Return the notes of a run with the verdict below what somebody has written there."""
    written = before.rstrip() if isinstance(before, str) else ""
    return f"{written}\n\nncclwatch: {text(verdict)}".lstrip()
