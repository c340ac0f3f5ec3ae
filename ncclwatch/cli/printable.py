"""What of a text may a terminal, a page or a ticket be given? Ranks choose names of jobs, files and functions."""


def printable(text: str) -> str:
    """Return a text in one line, without control characters, escapes and marks that turn the writing direction."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
