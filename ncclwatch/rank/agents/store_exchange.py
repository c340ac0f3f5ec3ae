"""Passes the address of a job's server from node to node, through the store that its ranks share already.

The agent beside rank 0 starts a server for a job on several nodes and leaves an offer beside the rings of the first two
ranks of its node: address, certificate, token. They put it into the store. On every other node the first two ranks look
for it there, and leave it beside their rings for their agent. What they find first may be of the run before a restart,
so they look again, less and less often. Two, because a job may hang in its first seconds with one
of them stopped. What the offer says is the agents' business, here it is bytes.

A client of its own talks to the store, in a thread of its own: the client of training has a lock that a wait holds, and
a store that does not answer keeps this thread alone. It is none of torch's, see `store_client`.
"""

import os
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from ncclwatch.contract import config
from ncclwatch.contract.machine import quiet_threads
from ncclwatch.contract.machine.private_dirs import PrivateDir
from ncclwatch.rank.agents.store_client import StoreClient, StoreGone

SOON_S, LATER_S = 0.25, 5.0  # between looks, in the first half minute and after it
KEY = "ncclwatch/server"  # of all attempts: after a restart torchrun may count another one on each node
EARLY_LOOKS = 120
LOOKERS = config.OFFERED_RANKS
QUESTIONS_PER_S = 500.0  # that all ranks together may ask of the store, which is one thread on rank 0's node

Endpoint = tuple[str, int]


def endpoint_of(said: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Endpoint | None:
    """Return where the store of a call of init_process_group listens, None where it is none of TCP."""
    store: object = said.get("store")
    while store is not None and hasattr(store, "underlying_store"):
        store = store.underlying_store
    if store is not None:
        host, port = getattr(store, "host", ""), getattr(store, "port", 0)
        return (host, port) if host and isinstance(port, int) else None
    method = said.get("init_method")
    if isinstance(method, str) and method.startswith("tcp://"):
        parts = urlsplit(method)
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    if method in (None, "env://") and environ.get("MASTER_PORT", "").isdigit():
        return environ.get("MASTER_ADDR") or "localhost", int(environ["MASTER_PORT"])
    return None


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether nobody has named a server, and a job on several nodes is to have one of its own."""
    return config.server_naming(environ) == config.UNNAMED and environ.get(config.ENV_SHARE) != "0"


def looks(rank: int, local_rank: int, local_world: int) -> bool:
    """Whether a rank is one of those that look for its node. LOCAL_RANK may not be set, and is the rank then."""
    return not local_world or min(local_rank, rank % local_world) < LOOKERS


def look_s(looks: int, askers: int) -> float:
    """Return the pause after so many looks, of one of so many ranks."""
    return max(SOON_S if looks < EARLY_LOOKS else LATER_S, askers / QUESTIONS_PER_S)


class Exchange:
    """Carries one rank's offer into the store, or what is there to this rank's agent. `begin` it once."""

    def __init__(self, place: PrivateDir, ring: str, endpoint: Endpoint, *, nodes: int) -> None:
        self._place = place  # held open by whoever gives it; this is closed with the thread
        self._offer, self._found = ring + config.OFFER_SUFFIX, ring + config.FOUND_SUFFIX
        self._endpoint = endpoint
        self._askers = nodes * LOOKERS
        self._put = b""
        self._seen = b""
        self._again_at, self._pause_s = 0.0, LATER_S  # when what was found is compared with the store again
        self._store: StoreClient | None = None
        self._over = threading.Event()

    def begin(self) -> None:
        """Start, in a thread that no exit waits for."""
        quiet_threads.start(threading.Thread(target=self._run, name="ncclwatch-store", daemon=True))

    def end(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        looks = 0
        with self._place:
            while not self._over.wait(look_s(looks, self._askers)):
                looks += 1
                try:
                    self.look()
                except StoreGone:  # it may come back
                    self.hang_up()
                except Exception:
                    break
            self.hang_up()

    def look(self) -> None:
        """Carry what is new, one way or the other. Raises `StoreGone`."""
        offer = self._place.read(self._offer, config.OFFER_BYTES_MAX)
        if offer:
            if offer != self._put:
                self._dial().set(KEY, offer)
                self._put = offer
            return
        known = self._seen and self._place.stat(self._found) is not None  # the agent takes it away to get another
        if known and time.monotonic() < self._again_at:
            self.hang_up()
            return
        self._pause_s = 2 * self._pause_s if known else LATER_S
        self._again_at = time.monotonic() + max(self._pause_s, look_s(EARLY_LOOKS, self._askers))
        found = self._dial().get(KEY, config.OFFER_BYTES_MAX)
        if found is not None and not (known and found == self._seen):
            self._seen, self._pause_s = found, LATER_S
            self._place.write(self._found, found)

    def _dial(self) -> StoreClient:
        if self._store is None:
            self._store = StoreClient(*self._endpoint)
        return self._store

    def hang_up(self) -> None:
        """Let go of the store, until the next look."""
        if self._store is not None:
            self._store.close()
            self._store = None
