"""Train on text files that are dealt out to the ranks like cards.

torchrun --standalone --nproc-per-node 3 z09b_file_shards.py
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch
import onset
from averaging import average_gradients, broadcast_parameters

FILES = [f"part-{number:03d}.txt" for number in range(11)]
BATCHES_PER_FILE = 15
VOCABULARY = 400


class Reader:
    """Reads the files of one rank."""

    def __init__(self, files: list[str]) -> None:
        self.files = files
        self.tokens = 0

    def __iter__(self) -> Iterator[Tensor]:
        for name in self.files:
            generator = torch.Generator().manual_seed(sum(name.encode()))
            for _ in range(BATCHES_PER_FILE):
                batch = torch.randint(0, VOCABULARY, (20, 8), generator=generator)
                self.tokens += batch.numel()
                yield batch


class Pretraining:
    def __init__(self) -> None:
        self.network = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 32), nn.ReLU(), nn.Linear(32, VOCABULARY))
        self.optimizer = torch.optim.Adagrad(self.network.parameters(), lr=0.05)
        broadcast_parameters(self.network)

    def run(self, reader: Reader) -> None:
        for number, batch in enumerate(reader):
            loss = F.cross_entropy(self.network(batch[:, :-1]), batch[:, -1])
            self.optimizer.zero_grad()
            loss.backward()
            average_gradients(self.network)
            self.optimizer.step()
            if number % 10 == 0 and dist.get_rank() == 0:
                print(f"batch {number}: loss {loss.item():.3f}", flush=True)

    def report(self, reader: Reader) -> None:
        """Add up the tokens that all ranks have read."""
        counts = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, torch.tensor([reader.tokens]))
        if dist.get_rank() == 0:
            print(f"{int(torch.stack(counts).sum())} tokens", flush=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    reader = Reader(FILES[dist.get_rank() :: dist.get_world_size()])
    pretraining = Pretraining()
    pretraining.run(reader)
    onset.mark()
    pretraining.report(reader)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
