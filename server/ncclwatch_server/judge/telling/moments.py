"""Says in words what the moments of files leave open: for how long ranks had waited when these were written."""

from ncclwatch.contract.words.text import seconds_words
from ncclwatch_server.judge.theory.moments import Lasted


def lasted_words(long: Lasted) -> str:
    """Return for how long it had lasted, as the end of an explanation."""
    if long.moving:
        return (
            " Operations of these ranks had ended just before the files were written, so they were at work; for "
            "how long the others had waited, the times of the files do not tell."
        )
    if not long.known:
        return (
            " The times of the files do not tell how long it had lasted, nor whether all are of one moment: a file may "
            "be older than the others, or all may be of a job that was well."
        )
    short = ", too short for a hang" if long.too_short else ""
    return f" That had lasted {seconds_words(long.seconds)} when the files were written{short}."
