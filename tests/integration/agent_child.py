"""A process that writes a ring like a rank, without torch, and does what it is told on its standard input.

python -m tests.integration.agent_child RUNTIME_DIR RANK WORLD_SIZE IDENTITY_JSON
"""

import itertools
import json
import os
import random
import sys
import threading
import time

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile, place_of_rings
from ncclwatch.rank.where import own_stacks


def main() -> None:
    """Write a ring, at once or when told to, say "ready", obey."""
    directory, rank, world_size, identity = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    if identity.pop("held", ""):
        print("held", flush=True)
        sys.stdin.readline()
    place = place_of_rings(directory, identity["job"])
    ring = RingFile(
        f"{place.path}/{rank}-{os.getpid()}.ring", place=place,
        rank=rank, local_rank=rank, world=(world_size, int(identity.pop("local_world", world_size))), attempt=0,
    )  # fmt: skip
    ring.set_word(Word.IDENTITY, ring.told(identity, kept=True))
    recorder = Recorder(ring)
    group = recorder.add_group("0", "default_pg", list(range(world_size)), 0)
    for number in range(int(identity.get("more_groups", 0))):
        first = number % 8
        recorder.add_group(f"{number} {'n' * 10_000}", "", list(range(first, world_size, 8)), 0)
    if "scattered" in identity:
        recorder.add_group("scattered", "", random.Random(5).sample(range(world_size), int(identity["scattered"])), 0)
    site = ring.string(f"{__file__}\x1f{main.__code__.co_firstlineno}\x1fmain")
    issued = recorder.issue(group, tuple(Op).index(Op.ALL_REDUCE), 4, (-1, 1, 1), site)
    recorder.track(issued, None)
    if identity.get("trains"):
        ring.set_word(Word.INITIALISED, 1)
        threading.Thread(target=_train, args=(recorder, site), daemon=True).start()
    else:
        recorder.enter(WaitKind.STORE, site)
    threading.Thread(target=_pulse, args=(ring,), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "exit":
            sys.stdout.flush()
            os._exit(int(argument))
        elif command == "note":
            ring.set_word(Word.ENDED, ring.string(argument))
        elif command == "truncate":
            os.truncate(ring.path, 100)
            os._exit(0)
        elif command == "detach":
            ring.set_word(Word.DETACHED, 1)
        print("done", flush=True)


def _train(recorder: Recorder, site: int) -> None:
    """Go on as a healthy rank does: ten steps a second, each with an operation in every group."""
    for step in itertools.count(1):
        for group in recorder.groups.values():
            recorder.track(recorder.issue(group, tuple(Op).index(Op.ALL_REDUCE), 4, (-1, 1, 1), site), None)
        recorder.count_step(step)
        time.sleep(0.1)


def _pulse(ring: RingFile) -> None:
    while True:
        ring.set_word(Word.PULSE_NS, time.monotonic_ns())
        own_stacks.answer(ring.place, ring.file_name)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
