"""Carries out what a server asks of this node.

The list of commands is closed, and they name ranks, not processes: whatever is asked is about
processes whose rings this agent has found itself.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from ncclwatch.contract import wire
from ncclwatch.contract.model.rank import RankView, StackDump
from ncclwatch.contract.words.printable import harmless
from ncclwatch_agent.acting.actor import Actor
from ncclwatch_agent.log import log
from ncclwatch_agent.process.rank_process import FROZEN
from ncclwatch_agent.ranks.jobs import LocalJob
from ncclwatch_agent.ranks.rank_rows import LocalRank, sites_to_read
from ncclwatch_agent.ranks.strangers import Strangers
from ncclwatch_agent.source.reading import SourceDesk
from ncclwatch_agent.stacks.deep_stacks import deepen
from ncclwatch_agent.stacks.own_stacks import ask, either
from ncclwatch_agent.stacks.py_spy import StackDesk
from ncclwatch_agent.uplink.connection import Uplink
from ncclwatch_agent.witnesses.asking import WitnessDesk
from ncclwatch_agent.witnesses.other_nodes import answering

TASKS_MAX = 32  # commands being carried out at once; a server that asks for more is not answered
TEXT_CHARS_MAX = 32_000  # on a terminal, of one verdict


class CommandDesk:
    """Carries out commands, each as a task of its own, so that none keeps another waiting."""

    def __init__(self, jobs: Callable[[], Iterable[LocalJob]]) -> None:
        self.sources = SourceDesk()
        self._stacks = StackDesk()
        self._witnesses = WitnessDesk()
        self.strangers = Strangers(self._stacks.dump)
        self.actor = Actor(self.tell)
        self._jobs = jobs
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = 0

    def take(self, uplink: Uplink, command: wire.Command) -> None:
        """Begin with a command. One about a job that is gone, or of another server, is nothing."""
        job = next((job for job in self._jobs() if job.index == command.index and job.server == uplink.name), None)
        if job is None:
            return
        if command.kind is wire.CommandKind.HANGS:
            self.actor.hear(job, command.text)
            return
        if len(self._tasks) >= TASKS_MAX:
            self.refused += 1
            log.warning(
                "%s asks for more than %d things at once; dropped %s", uplink.url, TASKS_MAX, command.kind.value
            )
            return
        self._keep(asyncio.create_task(self._carry_out(uplink, job, command)))

    def tell(self, job: LocalJob, sentence: str) -> None:
        """Put a sentence on a job's terminal."""
        self._keep(asyncio.create_task(put_on_terminal(job, f"ncclwatch: {sentence}\n")))

    def _keep(self, task: "asyncio.Task[None]") -> None:
        """Hold on to a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, uplink: Uplink, job: LocalJob, command: wire.Command) -> None:
        connection = uplink.connections
        ranks = [job.ranks[number] for number in command.ranks if number in job.ranks]
        answer: wire.AgentMessage | None = None
        if command.kind is wire.CommandKind.INSPECT:
            views = await self.views(ranks)
            strangers = self.strangers.views(job)
            answer = wire.Views(index=job.index, ranks=(*views, *strangers), reply_to=command.id)
        elif command.kind is wire.CommandKind.STACKS:
            dumps = tuple(await asyncio.gather(*(self._dump(rank, deeply=command.deeply) for rank in ranks)))
            answer = wire.Stacks(index=job.index, dumps=dumps, reply_to=command.id)
        elif command.kind is wire.CommandKind.WITNESS:
            said, communicators = await self._witnesses.ask(ranks)
            answer = wire.Testimonies(index=job.index, ranks=said, communicators=communicators, reply_to=command.id)
        elif command.kind is wire.CommandKind.PARAMETERS:
            kind, _, members = command.text.partition(" ")
            wrapped = tuple((rank.rank, rank.setup.parameters(kind, members)) for rank in ranks)
            answer = wire.Parameters(index=job.index, key=(kind, members), ranks=wrapped, reply_to=command.id)
        elif command.kind is wire.CommandKind.PROBE:
            here = [rank for rank in job.ranks.values() if rank.is_here]
            # The job's store may be in torchrun.
            launchers = {rank.watch.parent for rank in here if rank.watch.parent > 1}
            found = await answering(command.text, [*(rank.header.pid for rank in here), *launchers])
            answer = wire.Probed(index=job.index, answering=found, reply_to=command.id)
        elif command.kind is wire.CommandKind.PRINT:
            await put_on_terminal(job, command.text)
        if answer is not None and uplink.connections == connection:
            uplink.send(answer)

    async def views(self, ranks: Iterable[LocalRank]) -> tuple[RankView, ...]:
        """Return the full views of ranks at this moment, with the sources at their call sites."""
        now_ns = time.monotonic_ns()
        seen = [(rank, rank.view(now_ns)) for rank in ranks]
        found = [view for rank, view in seen if rank.ring.is_whole()]
        return tuple([replace(view, sources=await self.sources.notes(sites_to_read(view))) for view in found])

    async def _dump(self, rank: LocalRank, *, deeply: bool) -> StackDump:
        pid = rank.header.pid
        if rank.gone:
            return StackDump(rank=rank.rank, failure=f"rank {rank.rank} (pid {pid}) has ended")
        if not rank.is_here:  # that number is another process here, or none
            unseen = f"rank {rank.rank} (pid {pid}) was never seen here: it has ended, or runs in another container"
            elsewhere = StackDump(rank=rank.rank, failure=unseen)
            return either(elsewhere, await ask(rank.place, rank.ring.file_name, rank.rank, pid))
        dump = await self._stacks.dump(rank.rank, pid)
        if not dump.threads and rank.watch.state not in FROZEN:
            dump = either(dump, await ask(rank.place, rank.ring.file_name, rank.rank, pid))
        if not deeply or not dump.threads:
            return dump
        # Whatever the server thinks, nobody at work is halted.
        still = rank.watch.view(time.monotonic_ns()).cpu_still_s > 0
        return await deepen(self._stacks, dump, pid, native=still)

    def forget(self, job: LocalJob) -> None:
        """Let go of what is known of a job that is over."""
        self.strangers.forget(job.index)
        self.actor.forget(job)

    async def close(self) -> None:
        """Give up what is not done."""
        self.actor.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def put_on_terminal(job: LocalJob, text: str) -> None:
    """Show a text on the job's terminal once, or in the log if it has none."""
    shown = harmless(text[:TEXT_CHARS_MAX], keep_lines=True)
    if not job.wants_terminal or not job.is_news(shown):
        return
    if not await job.terminal.write(job.candidates(), shown):
        log.warning("job %s has no terminal that can be written to; it would have shown:", job.key.job)
        for line in shown.splitlines():
            log.warning("  %s", line)
