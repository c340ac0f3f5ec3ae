"""A node of a simulated job whose ranks are processes: each writes a real ring, and a real agent reads them."""

import json
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.ring.ringfile import RingFile, place_of_rings
from ncclwatch_server.simulation.rings import WrittenRing
from ncclwatch_server.simulation.run import Standstill
from ncclwatch_server.simulation.sights import play
from tests.integration.agent_node import Node

STOOD_S = 5.0  # for how long they stand when their rings come to be
_FORK = multiprocessing.get_context("fork")  # where all ranks of the job stand was worked out once


class PlayedNode:
    """The ranks of one node of a job that stands still, and their agent. A context manager."""

    def __init__(self, directory: Path, still: Standstill, number: int, *, server: str, job: str) -> None:
        self._node = Node(directory)
        self._ends: list[Connection] = []
        size = still.layout.node
        identity = {
            "job": job, "instance": "simulated", "host": f"node{number:05d}", "server": server, "server_named": "1",
        }  # fmt: skip
        self.ranks = [
            _FORK.Process(target=_be_rank, args=(directory, still, rank, identity, self._begin()), daemon=True)
            for rank in range(number * size, (number + 1) * size)
        ]

    def _begin(self) -> Connection:
        ours, theirs = _FORK.Pipe()
        self._ends.append(ours)
        return theirs

    def __enter__(self) -> "PlayedNode":
        for rank in self.ranks:
            rank.start()
        for end in self._ends:
            assert end.poll(30), "a rank has not written its ring"
            end.recv()
        self._node.spawn_agent()
        return self

    def __exit__(self, *exc: object) -> None:
        self._node.close()
        for rank in self.ranks:
            rank.kill()
            rank.join()
            rank.close()
        for end in self._ends:
            end.close()


def _be_rank(directory: Path, still: Standstill, rank: int, identity: dict[str, str], end: Connection) -> None:
    """Write the ring of a rank, and stand where it stands until killed."""
    size = still.layout.node
    place = place_of_rings(str(directory), identity["job"])
    file = RingFile(
        f"{place.path}/{rank}-{os.getpid()}.ring", rank=rank, local_rank=rank % size, world=(still.world_size, size),
        attempt=0, place=place,
    )  # fmt: skip
    ring = WrittenRing(file, time.monotonic_ns())
    play(still, rank, STOOD_S, ring, tid=threading.get_native_id())
    file.set_word(Word.IDENTITY, file.told(identity, kept=True))
    file.set_word(Word.PULSE_NS, time.monotonic_ns())
    end.send(json.dumps(identity))
    while True:
        time.sleep(0.5)
        file.set_word(Word.PULSE_NS, time.monotonic_ns())
