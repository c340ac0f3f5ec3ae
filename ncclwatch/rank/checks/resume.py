"""Says, at attach, that a resumed run had another number of ranks, where the command line names the checkpoint.

Trainers such as transformers and Accelerate save the random states of each rank in a file with the rank's number. Where
those files are not as many as the ranks, some ranks have none, and are left as they are or crash.
"""

import os
import re
import threading
from collections.abc import Callable, Sequence

from ncclwatch.contract.machine import quiet_threads

_FILE = re.compile(r"^(?:rng_state|random_states)_(\d+)\.(?:pth|pkl|pt)$")
ENTRIES_MAX = 20_000  # of a directory


def look(argv: Sequence[str], world_size: int, local_world: int, tell: Callable[[str, str], None]) -> None:
    """Compare in a thread of its own: the directory may be on storage that does not answer."""
    named = checkpoint_of(argv)
    if named:
        asked = (named, world_size, local_world, tell)
        quiet_threads.start(threading.Thread(target=_tell, args=asked, name="ncclwatch-resume", daemon=True))


def checkpoint_of(argv: Sequence[str]) -> str:
    """Return the path that an option about resuming names, "" if none does."""
    for number, word in enumerate(argv):
        option, has_value, value = word.partition("=")
        if option.startswith("-") and "resume" in option:
            return value if has_value else argv[number + 1] if number + 1 < len(argv) else ""
    return ""


def _tell(named: str, world_size: int, local_world: int, tell: Callable[[str, str], None]) -> None:
    try:
        sentence = compare(named, world_size, local_world)
    except OSError:  # no directory, or none that can be read: the program will say so
        return
    if sentence:
        tell(sentence, "resume")


def compare(directory: str, world_size: int, local_world: int = 0) -> str:
    """Return what to say of a checkpoint whose random states are of another number of ranks, "" if nothing.

    Each node may save those of its own `local_world` ranks in a directory of its own (`save_on_each_node` of
    transformers). Raises OSError where the directory cannot be listed.
    """
    saved = set()
    with os.scandir(directory) as entries:
        for _, entry in zip(range(ENTRIES_MAX), entries, strict=False):
            found = _FILE.match(entry.name)
            if found is not None:
                saved.add(int(found.group(1)))
    wanting = [rank for rank in range(world_size) if rank not in saved]
    if not saved or (not wanting and len(saved) == world_size):
        return ""
    if saved == set(range(local_world)):
        return ""
    missing = f" ranks {wanting[0]}-{wanting[-1]}" if len(wanting) > 1 else f" rank {wanting[0]}" if wanting else ""
    fate = f"there is none for{missing}" if missing else f"those of {len(saved) - world_size} ranks are left over"
    return (
        f"{directory} holds the random states of {len(saved)} ranks and this run has {world_size}: {fate}. Data order "
        "and dropout do not go on where the checkpoint was made; lists of device states may not fit either "
        "(ncclwatch.restore_rng_state restores what does)."
    )
