"""An incident of ranks that have detached meanwhile stands as long as nobody sees that its hang is over."""

import asyncio
from dataclasses import replace

from ncclwatch.contract import wire
from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import GroupView
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.tick import Watch
from tests.unit.server.server_values import VERDICT, digest, view

RANKS = (0, 1, 2, 3)


def test_a_hang_of_ranks_that_have_detached_resolves_once_another_is_through_with_it() -> None:
    clock = [0.0]
    completed = 6
    detached: tuple[int, ...] = ()

    def judge(snapshot: JobSnapshot) -> tuple[Verdict, ...]:
        return () if set(detached) & snapshot.silent.keys() else (VERDICT,)

    watch = Watch(judge, IncidentBook(), NoStore(), clock=lambda: clock[0], wall=lambda: clock[0])
    link = Link(number=1, agent="a", host="h", version="1")
    said = wire.Announce(index=0, job="job", instance="i", attempt=0, world_size=4, ranks=RANKS, terminal=False)
    job = watch.jobs.announce(link, said, 0.0)

    async def look(seconds: float) -> Incident:
        for _ in range(int(10 * seconds)):
            clock[0] += 0.1
            digest(job.state, 1, clock[0], dict.fromkeys(RANKS, clock[0]), detached=detached)
            while link.outbox:
                command = link.outbox.popleft()
                if isinstance(command, wire.Command) and command.kind is wire.CommandKind.INSPECT:
                    group = GroupView(name="0", desc="", ranks=RANKS, enqueued=9, completed=completed, prefix_hash=0)
                    views = [replace(view(rank), groups=(group,)) for rank in command.ranks]
                    job.inspection.receive_views(views, (1, command.id), clock[0])
            await watch._look_at(job)
        (incident,) = watch.book.all()
        return incident

    assert asyncio.run(look(9.0)).open
    detached = (1, 3)
    assert asyncio.run(look(9.0)).open, "the others may wait for them still"
    completed = 7
    assert asyncio.run(look(9.0)).state is IncidentState.RESOLVED
