"""Writes for people: what ranks wait in, lists of ranks, durations and amounts."""

from collections.abc import Iterable

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.words.rank_lists import host_groups

WAIT_WORDS: dict[WaitKind, str] = {
    WaitKind.STORE: "a key lookup on the rendezvous store",
    WaitKind.INIT: "init_process_group",
    WaitKind.NEW_GROUP: "new_group",
    WaitKind.DESTROY: "destroy_process_group",
    WaitKind.BACKWARD: "backward",
    WaitKind.DATA: "its data loader",
    WaitKind.SAVE: "a save",
    WaitKind.LOCK: "a file lock",
}


def rank_list(ranks: Iterable[int]) -> str:
    """Return ranks as people write them: (0, 1, 2, 5) is "0-2,5"."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def ranks_words(ranks: Iterable[int]) -> str:
    """Return "rank 3" or "ranks 0-2,5"."""
    found = sorted(set(ranks))
    return f"rank{'s' if len(found) != 1 else ''} {rank_list(found)}"


def group_words(name: str, title: str) -> str:
    """Return what to call a process group: its title, "group NAME" where a report of an older version has none."""
    return title or f"group {name}"


def host_words(hosts: Iterable[str], most: int = 6) -> str:
    """Return hosts for a sentence: "gpu[1-3], login", and how many further groups there are."""
    words = host_groups(hosts)
    return ", ".join(words if len(words) <= most else [*words[:most], f"and {len(words) - most} more"])


def bytes_words(count: float) -> str:
    """Return an amount of data for people: "512 B", "3.4 MB", "120 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.2g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def seconds_words(age_s: float) -> str:
    """Return a duration for people: "0.4 s", "25 s", "12 min"."""
    if age_s < 9.95:
        return f"{age_s:.1f} s"
    return f"{age_s:.0f} s" if age_s < 120 else f"{age_s / 60:.0f} min"
