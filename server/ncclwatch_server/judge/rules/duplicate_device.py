"""Two ranks are on one GPU, though NCCL takes no two: told before its first collective, and when that has failed.

The physical GPU (or MIG instance) of each rank is compared, on a node and across nodes. With gloo, MPS or NCCL's own
permission sharing is legal, and ranks that have completed a collective together have shown that it is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from ncclwatch.contract.model.devices import DeviceView
from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Cause, Culprit, Evidence, Severity
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule, Told, When
from ncclwatch_server.judge.rules.device_mappings import advice_for, mistake_of, strays_of, visible_words
from ncclwatch_server.judge.rules.frames.ends import tell_closer
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import GoneRoot, RefusedRoot, Root

CAUSE = Cause.DUPLICATE_DEVICE
ADVICE = (
    "Give every rank a device of its own: torch.cuda.set_device(LOCAL_RANK) first thing, and no more "
    "processes per node than it has visible devices."
)
# What NCCL says, before and since 2.30. It numbers ranks within the group that it was making.
_REFUSED = re.compile(r"Duplicate GPU detected|Multiple Ranks are using the same GPU", re.IGNORECASE)
_PAIR = re.compile(r"Duplicate GPU detected\s*:\s*rank (\d{1,6}) and rank (\d{1,6})", re.IGNORECASE)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a crash with NCCL's words for two ranks on one device, and what it said of such in a log."""
    if isinstance(root, RefusedRoot):
        return _refused_in_log(root)
    if not isinstance(root, GoneRoot):
        return None
    refused = [rank for rank in root.ends.failed if _refused(case.views[rank])]
    if root.ends.first not in refused:
        return None
    several = {uuid: ranks for uuid, ranks in _by_device(case.views, may_share=True).items() if len(ranks) > 1}
    # Every member of the group is told of the pair, also one that has a device of its own.
    uuid = next((uuid for uuid, ranks in several.items() if root.ends.first in ranks), next(iter(several), ""))
    ranks = several[uuid] if uuid else _named_by_nccl(case.views[root.ends.first], case.views) or tuple(sorted(refused))
    views = {rank: case.views[rank] for rank in ranks}
    guilty = _guilty(views)
    known = Explanation(
        cause=CAUSE,
        summary=f"{_on_one(ranks)}{_which(views, uuid)}, and NCCL takes one rank for each.",
        explanation=mistake_of(views),
        advice=advice_for(views),
        culprits=(),
        victims=tuple(sorted({*refused, *ranks} - set(guilty))),
        evidence=_evidence(views),
    )
    return tell_closer(case, known, guilty)


def warn(case: Case) -> Iterator[Told]:
    """Warn of ranks on one device, for the first such device."""
    for uuid, ranks in list(_on_one_device(case.views).items())[:1]:
        yield Told(said=_warning(case, uuid, ranks))


def _refused_in_log(root: RefusedRoot) -> Explanation:
    devices: dict[tuple[str, str], set[int]] = {}
    for each in root.devices:
        devices.setdefault((each.host, each.device), set()).update(each.ranks)
    hosts = {rank: host for (host, _), ranks in devices.items() for rank in ranks if host}
    where = "; ".join(
        f"{ranks_words(ranks)} on CUDA device {device}{f' of {host}' if host else ''}"
        for (host, device), ranks in sorted(devices.items(), key=lambda item: sorted(item[1]))
        if ranks
    )
    place = next((each.host for each in root.devices if each.host), "")
    unnamed = f"several ranks use the same GPU{f' on {place}' if place else ''}; NCCL does not say which"
    return Explanation(
        cause=CAUSE,
        summary=f"{f'{ranks_words(root.ranks)} share a GPU: {where}' if root.ranks else unnamed}.",
        explanation=(
            "NCCL makes no communicator with two ranks on one GPU. Ranks that never call "
            "torch.cuda.set_device, or are given more processes than visible devices, all take device 0. "
            "(NCCL numbers ranks within the group it was making; in the default group these are the global ranks.)"
        ),
        advice=ADVICE,
        culprits=tuple(
            Culprit(rank=rank, host=hosts.get(rank, ""), doing="on a GPU that another rank uses too")
            for rank in root.ranks
        ),
        victims=root.victims,
        evidence=tuple(
            Evidence(
                source="log",
                rank=each.ranks[0] if each.ranks else -1,
                fact=f"NCCL in {each.path}: "
                + (f"{ranks_words(each.ranks)} both on CUDA device {each.device}" if each.ranks else unnamed),
            )
            for each in root.devices[:16]
        ),
    )


def _refused(view: RankView) -> bool:
    return view.ending is not None and _REFUSED.search(view.ending.exception) is not None


def _named_by_nccl(view: RankView, views: Mapping[int, RankView]) -> tuple[int, ...]:
    """Return the ranks that NCCL's words name, where its numbers are the job's: no group has fewer ranks."""
    found = _PAIR.search(view.ending.exception) if view.ending is not None else None
    if found is None or any(len(group.ranks) < view.world_size for group in view.groups):
        return ()
    return tuple(sorted(number for number in {int(found.group(1)), int(found.group(2))} if number in views))


def _by_device(views: Mapping[int, RankView], *, may_share: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for rank, view in sorted(views.items()):
        device = view.cuda
        if device is not None and device.uuid and (may_share or device.exclusive):
            found.setdefault(device.uuid, []).append(rank)
    return {uuid: tuple(ranks) for uuid, ranks in found.items()}


def _on_one_device(views: Mapping[int, RankView]) -> dict[str, tuple[int, ...]]:
    """Return the devices that living ranks share, with these ranks, where nothing says that they may."""
    living = {rank: view for rank, view in views.items() if view.ending is None and view.attached}
    return {
        uuid: ranks
        for uuid, ranks in _by_device(living, may_share=False).items()
        if len(ranks) > 1 and not _get_along([living[rank] for rank in ranks])
    }


def _get_along(views: Sequence[RankView]) -> bool:
    """Whether ranks work together on their device, or each in groups of its own, where NCCL never sees both."""
    ranks = {view.rank for view in views}
    groups = [group for view in views for group in view.groups]
    common = [group for group in groups if ranks <= set(group.ranks)]
    if any(group.completed for group in common):
        return True
    return any(group.enqueued for group in groups) and not any(group.enqueued for group in common)


def _warning(case: Case, uuid: str, ranks: tuple[int, ...]) -> Explanation:
    views = {rank: case.views[rank] for rank in ranks}
    guilty = _guilty(views)
    if len({view.host for view in views.values()}) > 1:
        fate = (
            "NCCL takes ranks that say to be on different hosts for ranks of different machines and does not refuse; "
            "they take each other's memory and time."
        )
    else:
        fate = "NCCL takes one rank for each GPU: the first collective ends with an error on every rank of the group."
    return Explanation(
        cause=CAUSE,
        severity=Severity.WARNING,
        summary=f"{_on_one(ranks)}{_which(views, uuid)}.",
        explanation=f"{mistake_of(views)} {fate}",
        advice=advice_for(views),
        culprits=tuple(culprit(views[rank], None, _doing(views[rank].cuda)) for rank in guilty),
        victims=tuple(rank for rank in ranks if rank not in guilty),
        evidence=_evidence(views),
    )


def _guilty(views: Mapping[int, RankView]) -> tuple[int, ...]:
    """Return the ranks that went to another's device, where that can be told; otherwise all that are on it."""
    strays = strays_of({rank: view.cuda for rank, view in views.items() if view.cuda is not None})
    return tuple(strays) if 0 < len(strays) < len(views) else tuple(views)


def _on_one(ranks: tuple[int, ...]) -> str:
    return f"{ranks_words(ranks)} {'are' if len(ranks) > 1 else 'is'} on one GPU"


def _doing(device: DeviceView | None) -> str:
    return f"on its device {device.index}" if device is not None and device.index >= 0 else "on a GPU of another rank"


def _which(views: Mapping[int, RankView], uuid: str) -> str:
    hosts = ", ".join(sorted({view.host for view in views.values()}))
    return f" ({uuid} on {hosts})" if uuid else f" on {hosts}"


def _evidence(views: Mapping[int, RankView]) -> tuple[Evidence, ...]:
    facts = []
    for rank, view in list(views.items())[:16]:
        device = view.cuda
        if device is None:
            continue
        chosen = f"set_device({device.chosen})" if device.chosen >= 0 else "no set_device"
        fact = (
            f"device {device.index} of {device.count or '?'} visible, {device.uuid or 'UUID unknown'}; {chosen}; "
            f"CUDA_VISIBLE_DEVICES {visible_words(device)}; "
            f"LOCAL_RANK {device.local_rank if device.local_rank >= 0 else 'not set'}"
        )
        facts.append(Evidence(source="ring", rank=rank, fact=fact))
        if device.trouble:
            facts.append(Evidence(source="nvml", rank=rank, fact=device.trouble))
    return tuple(facts)


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise, warn=warn, when=When.AT_REST)
