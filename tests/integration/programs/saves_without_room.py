"""Save where there is no room, and print what the ring and the agent make of it: one line of JSON for each save.

python saves_without_room.py DIRECTORY, on a file system with 1 MiB of room or under a quota of that.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.views import Picture
from ncclwatch.rank.patches import saves
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch_agent.saves.progress import SaveWatch

KILOBYTE = 256  # elements of four bytes
DEADLINE_S = 30.0


def main(directory: str, ring_path: str) -> None:
    recorder = Recorder(RingFile(ring_path, rank=0, local_rank=0, world=(1, 1), attempt=0))
    saves.install(Patches(), lambda: recorder)
    ring, watch = Ring(ring_path), SaveWatch(os.getpid())

    def tell(when: str) -> None:
        """Print what is known as soon as somebody has looked at the file since its last change."""
        asked_ns, deadline = time.monotonic_ns(), time.monotonic() + DEADLINE_S
        looked = False
        while True:
            (view,) = watch.views(Picture.of(ring, time.monotonic_ns()))
            if looked or time.monotonic() > deadline:
                break
            # The look ends in a thread of its own, so maybe after the view above was made: that is made once more.
            place = watch.place(view.path)
            looked = place is not None and place.looked_ns >= asked_ns
            time.sleep(0 if looked else 0.02)
        found = {"error": view.error, "refused": view.refused, "total": view.total_bytes, "lacks": view.lacks_bytes}
        print(json.dumps({"when": when, "free": view.free_bytes, "trouble": watch.key() == 1, **found}), flush=True)

    class Looks:
        """Looks at its own save before anything of the tensors is written."""

        def __reduce__(self) -> object:
            tell("under way")
            return (str, ())

    torch.save({"model": torch.zeros(600 * KILOBYTE)}, f"{directory}/step_100.pt")
    tell("first")
    try:
        torch.save({"model": torch.zeros(4000 * KILOBYTE), "looks": Looks()}, f"{directory}/model.pt")
    except RuntimeError as error:
        tell(f"failed: {'Errno' in str(error)}")
    Path(directory, "step_100.pt").unlink()
    Path(directory, "model.pt").unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
