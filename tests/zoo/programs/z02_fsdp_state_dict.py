"""Fine-tune a small transformer block with FSDP and export the full weights at the end.

torchrun --standalone --nproc-per-node 4 z02_fsdp_state_dict.py
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch
import onset

VOCABULARY = 200
CONTEXT = 16


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.mix(self.norm(hidden))


class LanguageModel(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def make_loader() -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (1280, CONTEXT + 1), generator=generator)
    dataset = TensorDataset(tokens)
    return DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> None:
    for step, (tokens,) in enumerate(loader):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def export(model: FullyShardedDataParallel, path: Path) -> None:
    """Write the whole model from rank 0."""
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        if dist.get_rank() == 0:
            onset.mark()
            weights = model.state_dict()
            torch.save(weights, path)
    dist.barrier()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FullyShardedDataParallel(LanguageModel(), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, make_loader(), optimizer)
    export(model, Path(tempfile.mkdtemp(prefix="export-")) / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
