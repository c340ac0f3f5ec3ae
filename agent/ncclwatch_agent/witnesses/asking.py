"""Asks, with a deadline, who else saw what the ranks of this node issued: torch's Flight Recorder and NCCL's RAS."""

import asyncio
from collections.abc import Iterable

from ncclwatch.contract.model.testimony import Communicator, Testimony
from ncclwatch.contract.ring.layout import Flag
from ncclwatch.contract.ring.rows import GroupRow
from ncclwatch_agent.log import log
from ncclwatch_agent.ranks.rank_rows import LocalRank
from ncclwatch_agent.witnesses import flight_recorder, nccl_ras
from ncclwatch_agent.witnesses.worker_server import Unheard, ask

ASK_S_MAX = 3.0  # for one rank; an incident waits 1.5 s for its evidence, 4 s where a culprit cannot speak for itself
TOLD_MAX = 20  # sentences in the log
AT_ONCE = 2  # dumps of recorders held in memory


class WitnessDesk:
    """Asks for several ranks at once, and remembers what it has complained of."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._told: set[str] = set()

    async def ask(self, ranks: Iterable[LocalRank]) -> tuple[tuple[Testimony, ...], tuple[Communicator, ...]]:
        """Return what the recorders of some ranks hold, and what RAS says of their communicators."""
        living = [rank for rank in ranks if not rank.gone and rank.ending is None]
        testimonies = asyncio.gather(*(self._ask_recorder(rank) for rank in living))
        communicators, said = await asyncio.gather(self._ask_ras(living), testimonies)
        return tuple(said), communicators

    async def _ask_recorder(self, rank: LocalRank) -> Testimony:
        path = rank.identity.get("witness", "")
        async with self._turns:
            rows = rank.ring.groups()
            before = flight_recorder.frontier(rows)
            handlers = [flight_recorder.ANY_BACKEND] + [flight_recorder.NCCL] * _on_device(rows)
            failure = "" if path else "it has no worker server"
            answers: list[bytes | None] = []
            try:
                if path:
                    with rank.watch.overlooking():
                        answers = [await ask(path, handler, ASK_S_MAX) for handler in handlers]
            except Unheard as error:
                failure = str(error)
            after = flight_recorder.frontier(rank.ring.groups())
            seen = {name: count for name, count in before.items() if after.get(name) == count}
            if failure:
                return Testimony(rank=rank.rank, seen=seen, failure=failure)
            return flight_recorder.condense(rank.rank, [each for each in answers if each is not None], seen)

    async def _ask_ras(self, ranks: list[LocalRank]) -> tuple[Communicator, ...]:
        """Ask RAS, where ranks may use NCCL. The address is the default or what the ranks' own environment says."""
        asked = [rank for rank in ranks if _on_device(rank.ring.groups())]
        found: dict[Communicator, None] = {}
        for address in dict.fromkeys(rank.identity.get("nccl_ras", "") for rank in asked):
            pids = [rank.header.pid for rank in asked if rank.identity.get("nccl_ras", "") == address]
            try:
                found |= dict.fromkeys(nccl_ras.communicators(await nccl_ras.ask(address), pids))
            except nccl_ras.Silent as error:
                if str(error) not in self._told and len(self._told) < TOLD_MAX:
                    self._told.add(str(error))
                    log.info("%s", error)
        return tuple(found)


def _on_device(rows: Iterable[GroupRow]) -> bool:
    """Whether NCCL may have something to tell. Its recorder asks CUDA for the state of what it holds."""
    return any(row.flags & Flag.ASYNC for row in rows)
