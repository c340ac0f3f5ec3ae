"""Train on utterances of very different lengths; a batch is as many as fit into a number of frames.

torchrun --standalone --nproc-per-node 4 z10_speech_lengths.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset

import ncclwatch
import onset

FRAMES_MAX = 400


class Corpus(Dataset):
    def __init__(self, count: int = 2000) -> None:
        generator = torch.Generator().manual_seed(20)
        self.lengths = (torch.rand(count, generator=generator).pow(2) * 90 + 10).long().tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(self.lengths[index], 12, generator=torch.Generator().manual_seed(index))


class DynamicBatches(IterableDataset):
    """Pads together what fits; every rank reads every n-th utterance."""

    def __init__(self, corpus: Corpus, rank: int, world_size: int) -> None:
        self.corpus = corpus
        self.indices = range(rank, len(corpus), world_size)

    def __iter__(self):
        batch, longest = [], 0
        for index in self.indices:
            longest = max(longest, self.corpus.lengths[index])
            if longest * (len(batch) + 1) > FRAMES_MAX and batch:
                yield nn.utils.rnn.pad_sequence(batch, batch_first=True)
                batch, longest = [], self.corpus.lengths[index]
            batch.append(self.corpus[index])
        yield nn.utils.rnn.pad_sequence(batch, batch_first=True)


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(12, 24, 3, padding=1), nn.ReLU(), nn.Conv1d(24, 12, 3, padding=1))

    def forward(self, speech: Tensor) -> Tensor:
        return self.encoder(speech.transpose(1, 2)).transpose(1, 2)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    loader = DataLoader(DynamicBatches(Corpus(), rank, world_size), batch_size=None)
    model = DistributedDataParallel(Recogniser())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        seen = torch.zeros(1)
        for speech in loader:
            loss = F.mse_loss(model(speech), speech.cumsum(dim=1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += speech.shape[0]
        onset.mark()
        dist.reduce(seen, dst=0)
        if rank == 0:
            print(f"epoch {epoch}: {int(seen)} utterances, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
