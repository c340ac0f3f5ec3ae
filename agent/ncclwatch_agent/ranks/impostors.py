"""Tells which processes take part in a job as its ranks, and when two of them claim to be the same one.

A child that inherited RANK and attached is no rank: its ancestor is. Nor is one that never came to init_process_group,
or one on its way out, which runs no Python any more.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.reader import Words
from ncclwatch.contract.ring.views import age_s
from ncclwatch_agent.process.procfs import parse_stat
from ncclwatch_agent.ranks.rank_rows import LocalRank

PULSE_S_MAX = 3.0
ANCESTORS_MAX = 32


def takes_part(rank: LocalRank, now_ns: int, pids: Collection[int]) -> bool:
    """Whether a process has come to init_process_group as a rank. `pids` are those of all ranks on this node."""
    words = rank.words
    if rank.gone or rank.detached or rank.ending is not None or age_s(now_ns, words[Word.PULSE_NS]) > PULSE_S_MAX:
        return False
    if words[Word.INITIALISED] != 1 and not _initialises(rank, words):
        return False
    return not set(ancestors(rank.header.pid)) & set(pids)


def _initialises(rank: LocalRank, words: Words) -> bool:
    waits = (row.wait for row in rank.ring.threads(words))
    return any(wait is not None and wait.kind is WaitKind.INIT for wait in waits)


def twice(
    ranks: Mapping[int, LocalRank], extras: Iterable[LocalRank], now_ns: int, pids: Collection[int]
) -> tuple[int, ...]:
    """Return the ranks that two processes of this node are at once."""
    found = {
        extra.rank
        for extra in extras
        if extra.header.pid != ranks[extra.rank].header.pid
        and takes_part(extra, now_ns, pids)
        and takes_part(ranks[extra.rank], now_ns, pids)
    }
    return tuple(sorted(found))


def ancestors(pid: int) -> tuple[int, ...]:
    """Return the pids of a process's parent, its parent and so on, as far as they can be seen."""
    found: list[int] = []
    while pid > 1 and len(found) < ANCESTORS_MAX:
        try:
            stat = parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
        except OSError:
            break
        if stat is None:
            break
        pid = stat.parent
        found.append(pid)
    return tuple(found)
