"""Train a regression on event streams, with validation, checkpoints and telemetry; a configuration says how.

torchrun --standalone --nproc-per-node 3 injected.py '{"sharded": true, "events": [["spike", 1, 40, "training"]]}'
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ncclwatch
import onset

FEATURES, KINDS = 24, 6
SPIKE = 50.0


@dataclass
class Config:
    """What a run is made of. An event is (what happens, rank, step, while doing what)."""

    sharded: bool = False
    width: int = 48
    depth: int = 2
    batch: int = 16
    workers: int = 0
    epochs: int = 3
    steps: int = 40
    report_every: int = 5
    reporter: int = 0
    events: list = field(default_factory=list)

    def happens(self, what: str, rank: int, step: int, doing: str = "training") -> bool:
        """Say whether something happens to the data of a rank, its host or its disk."""
        return [what, rank, step, doing] in self.events


class Streams(Dataset):
    """The batches of one rank, in the order of the steps."""

    def __init__(self, config: Config, rank: int) -> None:
        self.config = config
        self.rank = rank
        self.archive = tempfile.NamedTemporaryFile(prefix="events-")
        self.archive.write(os.urandom(1 << 18))
        self.archive.flush()
        self.unanswered = os.path.join(tempfile.gettempdir(), f"mount-{os.getpid()}")
        os.mkfifo(self.unanswered)

    def __len__(self) -> int:
        return self.config.epochs * self.config.steps

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        step = index + 1
        self._read(step)
        generator = torch.Generator().manual_seed(1000 * self.rank + step)
        inputs = torch.randn(self.config.batch, FEATURES, generator=generator)
        kinds = torch.arange(self.config.batch) % KINDS
        targets = inputs[:, :4].sum(dim=1, keepdim=True)
        if self.config.happens("broken", self.rank, step):
            inputs[0, 3] = float("nan")
        if self.config.happens("spike", self.rank, step):
            targets[1] = 200.0
        if self.config.happens("rare", self.rank, step):
            kinds[kinds == KINDS - 1] = 0
        return inputs, targets, kinds

    def _read(self, step: int) -> None:
        if self.config.happens("mount", self.rank, step):
            onset.mark()
            with open(self.unanswered, "rb") as file:
                file.read()
        slowly = self.config.happens("cold", self.rank, step)
        for _ in range(7 if slowly else 1):
            sum(Path(self.archive.name).read_bytes())
            if slowly:
                time.sleep(1.5)


class Network(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.outer = nn.Linear(width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.inner(inputs)
        for block in self.blocks:
            hidden = hidden + F.gelu(block(hidden))
        return self.outer(hidden)


class Host:
    """What else lives on the host of a rank: a cache, a journal, a native library, and whoever looks after it."""

    def __init__(self, config: Config, rank: int) -> None:
        self.config = config
        self.rank = rank
        self.native = ctypes.PyDLL(None)
        self.lock = threading.Lock()
        self.lines: list[str] = []
        self.receipts: queue.Queue[int] = queue.Queue()

    def remember(self, step: int, doing: str) -> None:
        """Keep what was seen; the kernel kills the process that keeps too much."""
        if self.config.happens("memory", self.rank, step, doing):
            onset.mark()
            os.kill(os.getpid(), signal.SIGKILL)

    def make_room(self, step: int, doing: str) -> None:
        """The cluster freezes a process whose cores somebody else needs."""
        if self.config.happens("preempt", self.rank, step, doing):
            onset.mark()
            os.kill(os.getpid(), signal.SIGSTOP)

    def refresh_vocabulary(self, step: int, doing: str) -> None:
        if self.config.happens("vocabulary", self.rank, step, doing):
            onset.mark()
            self.native.sleep(ctypes.c_uint(600))

    def ship_journal(self) -> None:
        with self.lock:
            while self.receipts.get() < len(self.lines):
                pass
            self.lines.clear()

    def write_journal(self, step: int, text: str) -> None:
        if self.config.happens("journal", self.rank, step):
            threading.Thread(target=self.ship_journal, name="journal-shipper", daemon=True).start()
            time.sleep(0.05)
            onset.mark()
        with self.lock:
            self.lines.append(f"step {step}: {text}")

    def visit(self, step: int, doing: str) -> None:
        """All that the host does beside the training."""
        self.remember(step, doing)
        self.make_room(step, doing)
        self.refresh_vocabulary(step, doing)


class Telemetry:
    """Numbers of all ranks, in a group of their own so that gradients are not disturbed."""

    def __init__(self) -> None:
        self.group = dist.new_group()
        self.losses: list[Tensor] = []
        self.seen = torch.zeros(KINDS)

    def report_loss(self, loss: Tensor) -> None:
        losses = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, loss.detach(), group=self.group)
        self.losses.append(torch.stack(losses).mean())

    def count_kinds(self, kinds: Tensor) -> None:
        counts = torch.bincount(kinds).float()
        dist.all_reduce(counts, group=self.group)
        self.seen += counts


class Progress:
    """How far the training is, in a store beside it for tools that look on. One rank writes."""

    def __init__(self, address: str, config: Config, rank: int) -> None:
        port, self.keeper = (int(part) for part in address.split(","))
        self.config = config
        self.rank = rank
        self.store = None
        self.told = 0
        if rank == config.reporter:
            self.store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(minutes=10))

    def tell(self, step: int) -> None:
        if self.store is None:
            return
        for what, number in (("store frozen", signal.SIGSTOP), ("store gone", signal.SIGKILL)):
            if self.config.happens(what, self.rank, step):
                onset.mark()
                os.kill(self.keeper, number)
                time.sleep(0.2)
        self.store.add("steps", step - self.told)
        self.told = step


def keep_store(pipe) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: do not outlive the rank
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(f"{store.port},{os.getpid()}")
    signal.pause()


def start_store(rank: int) -> str:
    if rank != 0:
        return ""
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=keep_store, args=(theirs,), daemon=True).start()
    return ours.recv()


class Training:
    def __init__(self, config: Config, store_address: str) -> None:
        self.config = config
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        network = Network(config.width, config.depth)
        if config.sharded:
            for block in network.blocks:
                fully_shard(block)
            self.model = fully_shard(network)
        else:
            self.model = DistributedDataParallel(network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.telemetry = Telemetry()
        self.host = Host(config, self.rank)
        addresses = [store_address]
        dist.broadcast_object_list(addresses)
        self.progress = Progress(addresses[0], config, self.rank)
        self.directory = Path(tempfile.mkdtemp(prefix="run-"))
        self.leader = 0
        self.step = 0
        self.skipped = 0

    def run(self) -> None:
        streams = Streams(self.config, self.rank)
        loader = DataLoader(streams, batch_size=None, num_workers=self.config.workers)
        for inputs, targets, kinds in loader:
            self.step += 1
            self.host.visit(self.step, "training")
            self.train_step(inputs, targets, kinds)
            if self.step % self.config.steps == 0:
                self.finish_epoch(inputs, targets)

    def train_step(self, inputs: Tensor, targets: Tensor, kinds: Tensor) -> None:
        loss = F.mse_loss(self.model(inputs), targets)
        if not torch.isfinite(loss):
            onset.mark()
            self.skipped += 1
            return
        due = self.step % self.config.report_every == 0
        if loss > SPIKE:
            onset.mark()
            if due:
                self.telemetry.report_loss(loss)
                due = False
            else:
                self.warn(loss)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.host.write_journal(self.step, f"loss {loss.item():.4f}")
        if due:
            self.telemetry.report_loss(loss)
        if self.step % self.config.report_every == 0:
            if self.config.happens("rare", self.rank, self.step):
                onset.mark()
            self.telemetry.count_kinds(kinds)
            self.progress.tell(self.step)

    def warn(self, loss: Tensor) -> None:
        """Tell the other ranks of an unusual loss."""
        dist.broadcast(loss.detach().clone(), src=self.rank)
        print(f"rank {self.rank}, step {self.step}: loss {loss.item():.1f}", flush=True)

    def finish_epoch(self, inputs: Tensor, targets: Tensor) -> None:
        loss = self.validate(inputs, targets)
        self.choose_leader()
        self.save()
        if self.rank == 0:
            print(f"step {self.step}: validation loss {loss:.4f}, skipped {self.skipped}", flush=True)

    @torch.no_grad()
    def validate(self, inputs: Tensor, targets: Tensor) -> float:
        loss = F.mse_loss(self.model(inputs), targets)
        self.host.visit(self.step, "validation")
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()

    def choose_leader(self) -> None:
        """The leader says in which order the next epoch goes through the data."""
        if self.config.happens("roster", self.rank, self.step):
            self.leader = self.rank
            onset.mark()
        order = torch.randperm(self.config.steps)
        dist.broadcast(order, src=self.leader)

    def save(self) -> None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(self.model, options=options)
        self.host.visit(self.step, "saving")
        if self.rank == 0:
            target = self.directory / f"step-{self.step}.pt"
            if self.config.happens("disk", 0, self.step):
                onset.mark()
                os.mkfifo(target)
            torch.save(state, target)
            if self.config.happens("busy disk", 0, self.step):
                self.copy_slowly(target)
        dist.barrier()

    def copy_slowly(self, source: Path) -> None:
        content = source.read_bytes()
        with open(source.with_suffix(".copy"), "wb") as copy:
            for begin in range(0, len(content), len(content) // 8 + 1):
                copy.write(content[begin : begin + len(content) // 8 + 1])
                copy.flush()
                os.fsync(copy.fileno())
                time.sleep(1.5)


def main() -> None:
    config = Config(**json.loads(sys.argv[1]))
    store_address = start_store(int(os.environ["RANK"]))
    ncclwatch.attach()
    dist.init_process_group("gloo")
    Training(config, store_address).run()
    with contextlib.suppress(ChildProcessError):
        for child in multiprocessing.active_children():
            child.terminate()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
