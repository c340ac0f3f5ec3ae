"""The exit codes of `ncclwatch` and what each means. One table, for the help and for the code."""

from enum import IntEnum


class Exit(IntEnum):
    """How a command ends. `ncclwatch run` otherwise ends with the code of the command it has run."""

    DONE = 0
    BAD_NEWS = 1
    NOT_DONE = 2
    BROKEN = 3
    ABORTED = 70
    ELSEWHERE = 75
    NOT_RUNNABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """Say it in a sentence."""
        return _MEANINGS[self]


_MEANINGS: dict[Exit, str] = {
    Exit.DONE: "What was asked for is done; for run: the command ended well.",
    Exit.BAD_NEWS: (
        "It is done, and the news is bad: status --exit-code found a critical incident, diagnose a rank that is stuck, "
        "doctor something that works with less, simulate a wrong verdict."
    ),
    Exit.NOT_DONE: (
        "It could not be done: a wrong flag or setting, no server, a refused token, an unknown job or incident, "
        "nothing to read. Standard error says what to type next."
    ),
    Exit.BROKEN: "doctor found something that does not work.",
    Exit.ABORTED: "run ended the command after a critical verdict: --on-hang abort, or the policy says so.",
    Exit.ELSEWHERE: "run ended the command because of its nodes: it should be started again on others.",
    Exit.NOT_RUNNABLE: "run could not run the command.",
    Exit.NOT_FOUND: "run did not find the command.",
    Exit.INTERRUPTED: "Ended with Ctrl-C.",
}


def table() -> str:
    """Return all codes as lines of text; \\b keeps click from wrapping them anew."""
    import textwrap

    lines = ["\b", "Exit codes:"]
    for code in Exit:
        lines += textwrap.wrap(
            code.meaning, 76, initial_indent=f"  {code.value:>3}  ", subsequent_indent="       ", break_on_hyphens=False
        )
    return "\n".join(lines)
