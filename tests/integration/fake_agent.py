"""An agent that says what a test wants: stands in for a node with ranks."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from ncclwatch.contract import config, digests, wire
from ncclwatch.contract.groups import group_key, name_key
from ncclwatch.contract.model.rank import (
    CallSite,
    Ending,
    Op,
    ProcessState,
    ProcessView,
    RankView,
    StackDump,
    StackFrame,
    ThreadView,
    WaitKind,
    WaitView,
)
from ncclwatch.contract.model.testimony import Testimony
from ncclwatch.contract.ring.members import digest_of_all

DIGEST_S = 0.25
SITE = CallSite(file="/home/user/train.py", line=17, function="train")


def until(condition: Callable[[], object], timeout_s: float = 15.0, what: str = "") -> None:
    """Wait until something is so, and fail if it never is."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"never within {timeout_s} s: {what or condition}"
        time.sleep(0.02)


def open_line(url: str, token: str = "") -> ClientConnection:
    """Return a WebSocket to a server's agent route."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    address = url.replace("http", "ws", 1) + wire.AGENT_PATH
    return connect(address, additional_headers=headers, proxy=None).__enter__()


def hello(
    line: ClientConnection,
    agent: str = "a1",
    protocol: int = config.PROTOCOL,
    host: str = "node1",
    machine: str = "",
) -> None:
    """Introduce an agent."""
    said = wire.Hello(protocol=protocol, agent=agent, host=host, version="0.1.0", machine=machine)
    line.send(wire.encode(said).decode())


def reply(line: ClientConnection) -> wire.ServerMessage:
    """Return the next message of the server."""
    return wire.decode_from_server(line.recv(timeout=60))


class FakeAgent:
    """Sends digests of its ranks and answers commands, in a thread of its own."""

    def __init__(
        self,
        url: str,
        *,
        job: str = "job",
        instance: str = "host:29500",
        attempt: int = 0,
        ranks: tuple[int, ...] = (0, 1),
        world_size: int = 2,
        agent: str = "a1",
        host: str = "node1",
        terminal: bool = False,
        token: str = "",
        machine: str = "",
        user: str = "",
        labels: str = "",
    ) -> None:
        self.waiting: dict[int, float] = {}  # rank -> since when it waits
        self.ended: dict[int, Ending] = {}
        self.commands: list[wire.Command] = []
        self.answers_stacks = True
        self.refused = ""
        self.progress = 0
        self._ranks, self._world_size = ranks, world_size
        self._host = host
        self._line = open_line(url, token)
        hello(self._line, agent, host=host, machine=machine)
        assert isinstance(reply(self._line), wire.Welcome)
        self._say(
            wire.Announce(
                index=0, job=job, instance=instance, attempt=attempt, world_size=world_size,
                ranks=ranks, terminal=terminal, user=user, labels=labels,
            )
        )  # fmt: skip
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> "FakeAgent":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def hang(self, *ranks: int) -> None:
        """Let ranks wait from now on, in a collective that the others do not enter."""
        for rank in ranks:
            self.waiting[rank] = time.monotonic()

    def go_on(self) -> None:
        """Let all ranks train again."""
        self.waiting.clear()

    def end(self, rank: int, ending: Ending) -> None:
        """Let a rank end, and say so unasked."""
        self.ended[rank] = ending
        self._say(wire.Views(index=0, ranks=(self._view(rank),)))

    def gone(self) -> None:
        """Say that all ranks of this node have ended."""
        self._say(wire.Gone(index=0))

    def leave(self) -> None:
        """Break the line."""
        self._stop.set()
        with suppress(ConnectionClosed, OSError):
            self._line.close()
        self._thread.join(5)

    def asked(self, kind: wire.CommandKind) -> list[wire.Command]:
        """Return the commands of one kind that came so far."""
        return [command for command in self.commands if command.kind is kind]

    def _run(self) -> None:
        with suppress(ConnectionClosed, OSError):
            while not self._stop.is_set():
                self._line.send(self._digest())
                deadline = time.monotonic() + DIGEST_S
                while (left_s := deadline - time.monotonic()) > 0:
                    with suppress(TimeoutError):
                        self._answer(wire.decode_from_server(self._line.recv(timeout=left_s)))

    def _answer(self, message: wire.ServerMessage) -> None:
        if isinstance(message, wire.Refused):
            self.refused = message.reason
        if not isinstance(message, wire.Command):
            return
        self.commands.append(message)
        if message.kind is wire.CommandKind.INSPECT:
            views = tuple(self._view(rank) for rank in message.ranks)
            self._say(wire.Views(index=0, ranks=views, reply_to=message.id))
        elif message.kind is wire.CommandKind.STACKS and self.answers_stacks:
            dumps = tuple(_stack(rank, rank in self.waiting) for rank in message.ranks)
            self._say(wire.Stacks(index=0, dumps=dumps, reply_to=message.id))

        elif message.kind is wire.CommandKind.WITNESS:
            said = tuple(Testimony(rank=rank, failure="it has no worker server") for rank in message.ranks)
            self._say(wire.Testimonies(index=0, ranks=said, reply_to=message.id))

    def _say(self, message: wire.AgentMessage) -> None:
        self._line.send(wire.encode(message).decode())

    def _digest(self) -> bytes:
        self.progress += 1
        now = time.monotonic()
        key = group_key("0", digest_of_all(self._world_size))
        ranks, groups = [], []
        for rank in self._ranks:
            wait_s = now - self.waiting[rank] if rank in self.waiting else 0.0
            done = 1000 if self.waiting or self.ended else self.progress
            ranks.append(
                (
                    rank,
                    0,
                    int(rank in self.ended),
                    1,
                    0,
                    0.1,
                    wait_s,
                    done,
                    done,
                    done,
                    *self._wait(rank),
                    *digests.NO_FACTS,
                )
            )
            inside = 1 if wait_s else 0
            groups.append((rank, wait_s, key, done + inside, 7, inside, name_key("0")))
        return digests.pack_digest(0, ranks, groups)

    def _wait(self, rank: int) -> tuple[int, int, int]:
        kind = digests.WAIT_KINDS.index(WaitKind.COLLECTIVE)
        return (group_key("0", digest_of_all(self._world_size)), -1, kind) if rank in self.waiting else digests.NO_WAIT

    def _view(self, rank: int) -> RankView:
        wait = None
        if rank in self.waiting:
            age_s = time.monotonic() - self.waiting[rank]
            wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=age_s, group="0", seq=1001, op=Op.ALL_REDUCE, site=SITE)
        return RankView(
            rank=rank, local_rank=rank, host=self._host, pid=1000 + rank, device="cpu",
            world_size=self._world_size, local_world_size=len(self._ranks), attempt=0,
            process=ProcessView(state=ProcessState.SLEEPING), pulse_age_s=0.1, initialised=True,
            ending=self.ended.get(rank),
            threads=(ThreadView(tid=1, main=True, issued=1, wait=wait, doing=SITE),),
        )  # fmt: skip


def _stack(rank: int, waits: bool) -> StackDump:
    inner = "all_reduce" if waits else "sleep"
    frames = (
        StackFrame(function=inner, file="/x/site-packages/torch/distributed/c10d.py", line=1),
        StackFrame(function="train", file="/home/user/train.py", line=17),
    )
    pulse = (StackFrame(function="beat", file="/x/ncclwatch/rank/pulse.py", line=3),)
    return StackDump(rank=rank, threads=(("MainThread", frames), ("ncclwatch-pulse", pulse)))
