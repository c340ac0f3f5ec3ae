"""Says into how many parts a loader's sampler splits the data, and which one this rank reads.

Told once for each loop over data, at its first pass. Known are samplers that say so themselves: torch's
DistributedSampler and all that are built like it, and Accelerate's shards of batches.
"""

from collections.abc import Iterator

from ncclwatch.contract.model import preflight
from ncclwatch.rank.data.loaders import length_of

_DEPTH_MAX = 4  # of samplers in samplers
_NAMES = (("num_replicas", "rank"), ("num_processes", "process_index"))


def told_of(loader: object, rank: int, local_rank: int, world_size: int) -> dict[str, object] | None:
    """Return what the sampler of a loader says as it is written, None if it splits nothing.

    Which part a rank reads is told by what it has to do with the rank, so that ranks which do it right say the same;
    and only where there are as many parts as ranks: ranks of one tensor-parallel group read one part on purpose.
    """
    for sampler in _samplers(loader):
        for parts_name, part_name in _NAMES:
            parts, part = getattr(sampler, parts_name, None), getattr(sampler, part_name, None)
            if isinstance(parts, int) and isinstance(part, int) and parts > 0:
                data = getattr(sampler, "dataset", None)
                return {
                    "kind": type(sampler).__name__,
                    "parts": parts,
                    "part": _relation(part, rank, local_rank) if parts == world_size else "",
                    "samples": length_of(data) if data is not None else 0,
                    "length": length_of(sampler),
                    "order": _order(sampler),
                }
    return None


def _samplers(loader: object) -> Iterator[object]:
    """Return the samplers of a loader, the outer ones first."""
    found = _inner(loader)
    for _ in range(_DEPTH_MAX):
        if found is None:
            return
        yield found
        found = _inner(found)


def _inner(outer: object) -> object:
    found = getattr(outer, "batch_sampler", None)
    return found if found is not None else getattr(outer, "sampler", None)


def _relation(part: int, rank: int, local_rank: int) -> str:
    if part == rank:
        return preflight.PART_OWN
    if part == 0:
        return preflight.PART_FIRST
    return preflight.PART_LOCAL if part == local_rank else preflight.PART_OTHER


def _order(sampler: object) -> str:
    """Return in what order the data is split, "" if nobody can tell: the parts of one order do not overlap."""
    shuffles, seed = getattr(sampler, "shuffle", None), getattr(sampler, "seed", None)
    if not isinstance(shuffles, bool) or not isinstance(seed, int):
        return ""
    return f"shuffled with seed {seed}" if shuffles else "not shuffled"
