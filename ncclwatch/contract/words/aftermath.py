"""Writes what became of a hang after its job was started again."""

from ncclwatch.contract.words.text import seconds_words


def aftermath_words(recovered_after_s: float | None, came_back_as: str = "", came_back_from: str = "") -> str:
    """Return "recovered after 41 s", "came back as 1f2e" or "came back, was 0a1b"; "" where nothing is known."""
    said = [f"recovered after {seconds_words(recovered_after_s)}"] if recovered_after_s is not None else []
    said += [f"came back as {came_back_as}"] if came_back_as else []
    said += [f"came back, was {came_back_from}"] if came_back_from else []
    return "; ".join(said)
