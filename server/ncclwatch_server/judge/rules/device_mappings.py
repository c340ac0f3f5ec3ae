"""Names the mistake by which ranks came to one GPU, and the number of processes that is right.

Either there are more processes than devices (and the program takes the rank modulo the devices, or the first), or the
devices suffice and the program chooses none, the same for all, or hands a tensor on another's to a collective.
"""

from collections.abc import Mapping

from ncclwatch.contract.model.devices import DeviceView
from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.words.text import ranks_words

_FIRST_THING = (
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first in each process, and the same device in device_ids "
    "and .to()"
)


def mistake_of(views: Mapping[int, RankView]) -> str:
    """Return in a sentence what puts these ranks on one device."""
    processes, devices = _counts(views)
    known = {rank: view.cuda for rank, view in views.items() if view.cuda is not None}
    strays = strays_of(known)
    if strays:
        device = next(iter(strays.values()))
        return (
            f"{ranks_words(strays).capitalize()} handed a tensor on device {device.index} to a collective, though "
            f"device {device.chosen} was chosen: a checkpoint loaded without map_location, or a literal 'cuda:0'."
        )
    if 0 < devices < processes:
        many = f"There are {_many(processes, 'process', 'es')} on this node and {_many(devices, 'visible device')}"
        return f"{many}{_how(known, devices)}."
    if len(known) < len(views):
        return (
            "Ranks that never call torch.cuda.set_device, or of which there are more than visible devices, all take "
            "the first one."
        )
    return _choice_of(known, processes, devices)


def _choice_of(known: Mapping[int, DeviceView], processes: int, devices: int) -> str:
    """Return what puts ranks on one device where there are enough."""
    suffice = f" ({_many(processes, 'process', 'es')}, {_many(devices, 'device')})" if devices else ""
    if all(device.chosen < 0 for device in known.values()):
        return f"The devices suffice{suffice}, but no rank called torch.cuda.set_device: all take the first they see."
    chosen = {device.chosen for device in known.values()}
    if len(chosen) == 1 and devices:
        return f"The devices suffice{suffice}, but each rank chose device {chosen.pop()}, whatever its LOCAL_RANK."
    lists = "; ".join(f"rank {rank}: {visible_words(device)}" for rank, device in list(known.items())[:8])
    return f"Their own numbers mean the same GPU. CUDA_VISIBLE_DEVICES: {lists}."


def advice_for(views: Mapping[int, RankView]) -> str:
    """Return what to change, with the number of processes that is right."""
    processes, devices = _counts(views)
    known = {rank: view.cuda for rank, view in views.items() if view.cuda is not None}
    if 0 < devices < processes:
        return (
            f"Start as many processes on a node as it has visible devices: --nproc-per-node={devices} here, not "
            f"{processes}. If there should be more devices, look at CUDA_VISIBLE_DEVICES and at what the scheduler "
            "gave the job."
        )
    if strays_of(known):
        return f"Load with map_location=f'cuda:{{local_rank}}' (or 'cpu'), and use {_FIRST_THING}."
    if len({device.visible for device in known.values()}) > 1:
        return (
            "Give each rank a GPU of its own in CUDA_VISIBLE_DEVICES, or the whole list to all ranks. Then call "
            f"{_FIRST_THING}; start no more processes on a node than it has devices."
        )
    return (
        f"Give each rank a device of its own: {_FIRST_THING}. Start no more processes on a node than visible devices."
    )


def visible_words(device: DeviceView) -> str:
    """Return CUDA_VISIBLE_DEVICES of a rank."""
    return "not set" if device.visible is None else device.visible or "empty"


def strays_of(known: Mapping[int, DeviceView]) -> dict[int, DeviceView]:
    """Return the ranks whose collective got a tensor on another device than the one they chose."""
    return {
        rank: device
        for rank, device in known.items()
        if device.used and device.chosen >= 0 and device.index != device.chosen
    }


def _counts(views: Mapping[int, RankView]) -> tuple[int, int]:
    """Return (processes of the job on these ranks' node, devices they see together); 0: unknown."""
    processes = max((view.local_world_size for view in views.values()), default=0)
    known = [view.cuda for view in views.values() if view.cuda is not None]
    if len({view.host for view in views.values()}) > 1 or len({device.visible for device in known}) != 1:
        return processes, 0  # each sees devices of its own: how many there are in all, they do not tell
    return processes, max(device.count for device in known)


def _how(known: Mapping[int, DeviceView], devices: int) -> str:
    modulo = all(device.local_rank >= 0 and device.index == device.local_rank % devices for device in known.values())
    if modulo and devices > 1:
        return ", taken by LOCAL_RANK modulo the devices"
    if all(device.chosen < 0 for device in known.values()):
        return "; none of these ranks called torch.cuda.set_device"
    return ""


def _many(count: int, thing: str, plural: str = "s") -> str:
    return f"{count} {thing}{'' if count == 1 else plural}"
