"""One cell of the table: the life of an incident, one fault at one step of it, and what must hold afterwards."""

import random
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ncclwatch_server.limits import ABANDONED_S
from tests.chaos.board import Wish, Word
from tests.chaos.faults import Aim, Fault
from tests.chaos.gloo_world import GlooWorld
from tests.chaos.rank import CULPRIT
from tests.chaos.world import World
from tests.integration.real_jobs import until

STEPS = ("attaches", "healthy", "begins", "stacks", "opened", "notified", "steady", "ends", "resolved")
HANGS = ("rank_conditional_collective", "host_stall")  # the two hangs that a cell may have
WAIT_S = 150.0  # on a machine that others use as well
LOST_S = 30.0  # that is waited for a verdict on ranks of which one is not seen
GAP_MS_MAX = 4000  # that a rank which is not the target may stand still though a core is free; a fault lasts longer
STEPS_MIN = 5  # that a healthy job does before a fault ends that is not in a rank
LATER_S = 2.5  # in which a second incident would show where nothing is judged any more
JUDGEMENTS = 3

_HOLDS = (
    "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); "
    "print('has it', flush=True); sys.stdin.read()"
)


@dataclass
class Cell:
    """What is found out of one cell."""

    step: str
    fault: Fault
    seed: int
    failures: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)  # the incidents at the end
    seconds: float = 0.0

    @property
    def green(self) -> bool:
        """Whether all held."""
        return not self.failures

    def run(self, directory: Path) -> None:
        """Live it."""
        began = time.monotonic()
        try:
            with self._world(directory) as world:
                Life(self, world).live()
        except AssertionError as error:
            self.failures.append(str(error))
        except Exception as error:  # noqa: BLE001 the other cells go on
            self.failures.append(f"{type(error).__name__}: {error}")
        self.seconds = time.monotonic() - began

    def _world(self, directory: Path) -> World:
        if self.fault.real:
            return GlooWorld(directory)
        return World(directory, clock=self.fault.preload, small_shm=self.fault.small_shm)


class Life:
    """A job from its start to its end."""

    def __init__(self, cell: Cell, world: World) -> None:
        self.cell, self.world, self.fault = cell, world, cell.fault
        self.dice = random.Random(f"{cell.seed} {cell.step} {cell.fault.name}")
        # Of a rank that stalls nothing else can be seen: its neighbours are hit.
        some = [rank for rank in range(world.size) if rank != CULPRIT or cell.step not in ("resolved",)]
        self.target = self.dice.choice(some)
        self.hung = self.struck = False
        self._stack = ExitStack()

    def live(self) -> None:
        """Go through all steps, with the fault at its own."""
        world = self.world
        with self._stack:
            if self.cell.step != "notified":
                world.receiver.let_go.set()
            world.start_server()
            world.start_ranks()
            self._attach()
            if not self._dead():
                self._hang()
            if self._dead():
                self._mourn()
            self._check_incidents("before the end")
            self._end()
            self._check_end()

    def _dead(self) -> bool:
        """Whether the target has died in a job that had not hung before."""
        return self.fault.deadly and not self.world.lives(self.target)

    def _lost(self) -> bool:
        """Whether nobody sees the target any more."""
        return self.fault.lost and self.struck

    def _attach(self) -> None:
        world = self.world
        until(lambda: all(world.board.get(rank, Word.PID) for rank in range(world.size)), world.told, WAIT_S)
        if self.cell.step == "attaches":
            if self.fault.hits("agent"):
                until(world.agent, world.told, WAIT_S)
            self._strike()
            if self._dead():
                return
        if not self._lost():
            world.wait("watched", WAIT_S)
        at = world.steps()
        until(lambda: world.steps() > at + 10, world.told, WAIT_S)
        if self.cell.step == "healthy":
            self._strike()

    def _hang(self) -> None:
        world, step = self.world, self.cell.step
        self.hung = True
        if step == "resolved":
            holder = self._hold_the_gate()
            world.board.wish = Wish.STALL
        else:
            world.board.wish = Wish.PART
        world.wait("stands", WAIT_S)
        if step == "begins":
            self._strike()
        if step == "stacks":
            assert world.proxy.asked_for_stacks.wait(WAIT_S), world.told()
            self._strike()
        if not self._told_honestly():
            return
        if step == "opened":
            self._strike()
        if step == "notified":
            assert world.receiver.came.wait(WAIT_S), world.told()
            self._strike()
            world.receiver.let_go.set()
        until(lambda: world.receiver.taken, world.told, WAIT_S)
        if step == "steady":
            until(lambda: any(i["stacks"] for i in world.incidents()), world.told, WAIT_S)
            self._strike()
        if step == "resolved":
            world.board.wish = Wish.TRAIN
            holder.kill()
            until(lambda: [i["state"] for i in world.incidents()] == ["resolved"], world.told, WAIT_S)
            self._strike()

    def _hold_the_gate(self) -> "subprocess.Popen[str]":
        """Let a process that does nothing else hold the lock: what this one does would count as work for the rank."""
        command = [sys.executable, "-c", _HOLDS, str(self.world.gate)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.enter_context(holder)
        self._stack.callback(holder.kill)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "has it\n"
        return holder

    def _told_honestly(self) -> bool:
        """Wait for the incident of the hang; whether there is one. Of a rank that nobody sees there need be none."""
        try:
            until(self._opened, self.world.told, LOST_S if self._lost() else WAIT_S)
        except AssertionError:
            if not self._lost():
                raise
            return False
        return True

    def _opened(self) -> bool:
        """Whether the hang has its incident; where the target died meanwhile, its end may be told instead."""
        found = [i for i in self.world.incidents() if i["severity"] == "critical"]
        return any(self._of_the_hang(i) or (self.fault.deadly and self._of_the_target(i)) for i in found)

    def _mourn(self) -> None:
        """Wait until the death of the target is told, where the job did not hang before it."""
        world = self.world
        if self.cell.step in ("attaches", "healthy", "resolved"):
            until(lambda: any(self._of_the_target(i) for i in world.incidents()), world.told, WAIT_S)

    def _strike(self) -> None:
        world, fault = self.world, self.fault
        time.sleep(self.dice.random() * 0.2)
        for rank in range(world.size):
            world.board.set(rank, Word.GAP_MS, 0)
        self.struck = True
        healthy = not self.hung or self.cell.step == "resolved"
        before = world.steps()
        with fault.put(world, Aim(fault.who, self.target, self.dice)):
            if self.cell.step == "ends":
                world.stop_training()
            time.sleep(fault.lasts_s)
            if healthy and self.cell.step != "ends" and fault.who != "rank":  # whatever the rank waits for is not over
                until(lambda: world.steps() >= before + STEPS_MIN, world.told, WAIT_S)
        if self.cell.step != "ends":
            self._check_ranks()
            self._works_again()

    def _works_again(self) -> None:
        """Wait until every component does its work again."""
        world = self.world
        until(lambda: world.ask("/api/v1/jobs") is not None, world.told, WAIT_S)
        until(world.agent, world.told, WAIT_S)
        until(lambda: world.metric("ncclwatch_agents_connected") >= 1, world.told, WAIT_S)
        if not self.fault.deadly and not self.fault.lost:
            world.wait("watched", WAIT_S)
        world.wait("stored", WAIT_S)
        if self.hung and self.cell.step != "resolved" and not self.fault.lost:
            judged = world.metric("ncclwatch_judgements_total")
            until(lambda: world.metric("ncclwatch_judgements_total") >= judged + JUDGEMENTS, world.told, WAIT_S)

    def _check_ranks(self) -> None:
        world = self.world
        for rank in range(world.size):
            if rank == self.target and self.fault.who == "rank":
                continue
            gap_ms = world.board.get(rank, Word.GAP_MS)
            # A rank that has just attached shares its interpreter with its pulse's first beat, which may lack a core.
            if gap_ms > GAP_MS_MAX and self.cell.step != "attaches":
                self._fail(f"rank {rank} stood still for {gap_ms} ms")
            if not world.lives(rank):
                self._fail(f"rank {rank} ended: {world.log('ranks.log')[-300:]}")

    def _of_the_hang(self, incident: dict) -> bool:
        return [c["rank"] for c in incident["culprits"]] == [CULPRIT] and incident["cause"] in HANGS

    def _of_the_target(self, incident: dict) -> bool:
        blames = {cause.value for cause in self.fault.blames}
        return [c["rank"] for c in incident["culprits"]] == [self.target] and incident["cause"] in blames

    def _check_incidents(self, when: str) -> None:
        """Say what is wrong with the incidents that the server has."""
        found = self.world.incidents()
        self.cell.seen = [f"{i['cause']} {[c['rank'] for c in i['culprits']]} {i['state']}" for i in found]
        hangs = [i for i in found if self._of_the_hang(i)]
        target = [i for i in found if i not in hangs and self._of_the_target(i)]
        others = [i for i in found if i not in hangs and i not in target]
        if len(hangs) > 1:
            self._fail(f"{when}: the hang has {len(hangs)} incidents: {self.cell.seen}")
        if len({i["cause"] for i in target}) != len(target):
            self._fail(f"{when}: what befell the target has {len(target)} incidents: {self.cell.seen}")
        if hangs and not self.hung:
            self._fail(f"{when}: a hang was told that was none: {self.cell.seen}")
        for each in others:
            culprits = {c["rank"] for c in each["culprits"]}
            if not (self.fault.blind and each["cause"] == "undetermined" and culprits <= {CULPRIT, self.target}):
                self._fail(f"{when}: wrong: {each['cause']} {each['severity']}: {each['summary']}")
        if not (hangs or target) and (self.hung or self.fault.deadly) and not self.fault.blind:
            self._fail(f"{when}: no incident at all")

    def _end(self) -> None:
        world = self.world
        if self.cell.step == "ends":
            self._strike()
        elif self.cell.step == "resolved" and not self._dead():
            world.board.wish = Wish.END
        else:
            world.stop_training()
        for rank in world.ranks:
            rank.wait(WAIT_S)
        until(lambda: world.ask("/api/v1/jobs") is not None, world.told, WAIT_S)

    def _check_end(self) -> None:
        world = self.world
        # An agent that is killed together with the last rank is started again by nobody, and one whose server is away
        # for ten seconds then has ended: such a job is given up after two minutes (`limits.ABANDONED_S`).
        until(lambda: all(job["state"] == "ended" for job in world.jobs()), world.told, WAIT_S + ABANDONED_S)
        until(lambda: not any(i["state"] == "open" for i in world.incidents()), world.told, WAIT_S + ABANDONED_S)
        time.sleep(LATER_S)
        self._check_incidents("at the end")
        world.wait("stored", WAIT_S)
        if world.kept() != {each["id"] for each in world.incidents()}:
            self._fail(f"the store has {world.kept()}, and the server {[each['id'] for each in world.incidents()]}")
        told = [each["id"] for r in world.receiver.taken if r.event == "firing" for each in r.json["incidents"]]
        for each in set(told):
            if told.count(each) > 1 + self.fault.tells_twice:
                self._fail(f"incident {each} was told {told.count(each)} times")

    def _fail(self, sentence: str) -> None:
        if sentence not in self.cell.failures:
            self.cell.failures.append(sentence)
