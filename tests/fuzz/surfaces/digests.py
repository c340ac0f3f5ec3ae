"""Digests of two agents of one job: bytes become rows, and each agent changes only what is told of its own ranks."""

import struct
from collections.abc import Hashable

import numpy as np

from ncclwatch.contract import digests
from ncclwatch.contract.errors import WireError
from ncclwatch_server.state.job_state import JobState
from tests.fuzz import mutation
from tests.fuzz.engine import Broken, Surface

WORLD = 4
HONEST, OTHER = 1, 2  # connections; the honest one speaks for ranks 0 and 1, and its digest is never changed


def digest(ranks: tuple[int, ...], *, wait_s: float = 0.0, enqueued: int = 5) -> bytes:
    """Return a digest of ranks with one group each."""
    rows = [
        (rank, 0, 0, 1, 0, 0.1, wait_s, enqueued, enqueued - 1, 3, *digests.NO_WAIT, *digests.NO_FACTS)
        for rank in ranks
    ]
    return digests.pack_digest(0, rows, [(rank, wait_s, 9, enqueued, 1, 1, 8) for rank in ranks])


_HONEST = digests.split_digest(digest((0, 1)))


def check(data: bytes) -> Hashable:
    """Take three digests, one behind the other in the input, at three moments."""
    state = JobState(WORLD)
    state.announce(HONEST, (0, 1), 0.0)
    state.announce(OTHER, (2, 3), 0.0)
    became: list[object] = []
    with np.errstate(all="ignore"):
        for number, part in enumerate(_parts(data)):
            now = 10.0 * (number + 1)
            state.receive_digest(HONEST, *_HONEST[1:], now)
            try:
                _, ranks, groups = digests.split_digest(part)
            except WireError as error:
                became.append(str(error)[:24])
            else:
                state.receive_digest(OTHER, ranks, groups, now)
            rejected = state.fold(now)
            became.append((rejected, _looked_at(state, now)))
            if HONEST in rejected or state.ranks_of(HONEST) != (0, 1):
                raise Broken("an agent was let go for what another one sent")
    return tuple(became)


def _looked_at(state: JobState, now: float) -> Hashable:
    found = state.suspicion(now)
    named = {*found.waiting, *found.ended, *found.silent, *found.desynced, *found.saving, *found.sharing, *found.noted}
    if not named <= set(range(WORLD)):
        raise Broken(f"ranks that are none: {named}")
    asked = state.worth_a_look(found.waiting, 8)
    if not set(asked) <= set(range(WORLD)):
        raise Broken(f"ranks to ask that are none: {asked}")
    state.picture(now)
    state.living()
    state.explained_by(asked)
    return len(found.waiting), found.ended, bool(found.desynced), found.saving, found.sharing, found.noted, state.over


def _parts(data: bytes) -> tuple[bytes, ...]:
    """Return three digests of an input: two lengths in front."""
    if len(data) < 8:
        return (data,)
    first, second = struct.unpack_from("<II", data)
    body = data[8:]
    return body[:first], body[first : first + second], body[first + second :]


def _seed(*digests: bytes) -> bytes:
    return struct.pack("<II", len(digests[0]), len(digests[1])) + b"".join(digests)


SURFACE = Surface(
    name="digests",
    seeds=(
        _seed(digest((2, 3)), digest((2, 3), enqueued=6), digest((2, 3), enqueued=7)),
        _seed(digest((2, 3), wait_s=1.0), digest((2, 3), wait_s=11.0), digest((2, 3), wait_s=21.0)),
        _seed(digest((2,)), digest((2, 3)), digest((3,))),
        _seed(digest(()), digests.pack_digest(0, [], []), digest((0, 1, 2, 3))),
    ),
    mutate=mutation.of_bytes,
    check=check,
)
