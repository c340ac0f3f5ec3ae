"""Ranks that NCCL refused because they share a GPU: it says so in its log, and nothing else comes after it."""

from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Evidence
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Told
from ncclwatch_server.judge.rules import duplicate_device
from ncclwatch_server.judge.theory.case import Case


def refused_devices(case: Case) -> tuple[Told, ...]:
    """Judge what NCCL said in a log of ranks that share a device."""
    found = case.snapshot.shared_devices
    if not found or case.told:
        return ()
    devices: dict[tuple[str, str], set[int]] = {}
    for each in found:
        devices.setdefault((each.host, each.device), set()).update(each.ranks)
    ranks = sorted({rank for each in devices.values() for rank in each})
    hosts = {rank: host for (host, _), each in devices.items() for rank in each if host}
    where = "; ".join(
        f"{ranks_words(each)} on CUDA device {device}{f' of {host}' if host else ''}"
        for (host, device), each in sorted(devices.items(), key=lambda item: sorted(item[1]))
        if each
    )
    place = next((each.host for each in found if each.host), "")
    unnamed = f"several ranks use the same GPU{f' on {place}' if place else ''}; NCCL does not say which"
    return (
        Told(
            said=Explanation(
                cause=Cause.DUPLICATE_DEVICE,
                summary=f"{f'{ranks_words(ranks)} share a GPU: {where}' if ranks else unnamed}.",
                explanation=(
                    "NCCL makes no communicator with two ranks on one GPU. Ranks that never call "
                    "torch.cuda.set_device, or are given more processes than visible devices, all take device 0. "
                    "(NCCL numbers ranks within the group it was making; in the default group these are the global "
                    "ranks.)"
                ),
                advice=duplicate_device.ADVICE,
                culprits=tuple(
                    Culprit(rank=rank, host=hosts.get(rank, ""), doing="on a GPU that another rank uses too")
                    for rank in ranks
                ),
                victims=tuple(rank for rank in range(case.snapshot.world_size) if rank not in ranks),
                evidence=tuple(
                    Evidence(
                        source="log",
                        rank=each.ranks[0] if each.ranks else -1,
                        fact=f"NCCL in {each.path}: "
                        + (f"{ranks_words(each.ranks)} both on CUDA device {each.device}" if each.ranks else unnamed),
                    )
                    for each in found[:16]
                ),
            ),
            certainty=Certainty.PROVEN,
        ),
    )
