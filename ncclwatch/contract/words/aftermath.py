"""Writes what became of a hang after its job was started again, and what it has cost."""

from ncclwatch.contract.words.text import seconds_words


def aftermath_words(recovered_after_s: float | None, came_back_as: str = "", came_back_from: str = "") -> str:
    """Return "recovered after 41 s", "came back as 1f2e" or "came back, was 0a1b"; "" where nothing is known."""
    said = [f"recovered after {seconds_words(recovered_after_s)}"] if recovered_after_s is not None else []
    said += [f"came back as {came_back_as}"] if came_back_as else []
    said += [f"came back, was {came_back_from}"] if came_back_from else []
    return "; ".join(said)


def hours_words(seconds: float) -> str:
    """Return an amount of hours for people: "0.02", "3.4", "1,234"."""
    hours = seconds / 3600.0
    return f"{hours:,.0f}" if hours >= 99.5 else f"{hours:.2g}" if hours >= 0.0095 else f"{hours:.1g}"


def time_words(seconds: float) -> str:
    """Return a sum of time for people: "16 s", "12 min", "3.4 h"."""
    return seconds_words(seconds) if seconds < 3600 else f"{hours_words(seconds)} h"


def cost_words(lost_s: float, ranks: int, gpus: int) -> str:
    """Return "41 s of 16 ranks: 0.18 GPU-hours". Without a GPU that ranks have for themselves it is rank-hours."""
    what, count = ("GPU", gpus) if gpus else ("rank", ranks)
    held = f"{ranks} rank{'s' if ranks != 1 else ''}"
    return f"{seconds_words(lost_s)} of {held}: {hours_words(lost_s * count)} {what}-hours"


def loss_notes(*, timeout_unknown: int, end_unknown: int) -> list[str]:
    """Return what a reader of a report on hangs has to know of its numbers."""
    notes = ["time saved: how much longer the jobs would have hung, until the timeout of their process group"]
    if timeout_unknown:
        notes.append(f"of {_hangs(timeout_unknown)} nobody knows that timeout: nothing is counted as saved")
    if end_unknown:
        notes.append(f"of {_hangs(end_unknown)} nobody saw the end: no time is counted as lost")
    return notes


def _hangs(count: int) -> str:
    return f"{count} hang{'s' if count != 1 else ''}"
