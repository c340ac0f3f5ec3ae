"""Train a small sharded language model and let it write a sentence now and then.

torchrun --standalone --nproc-per-node 3 z20_generate.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import ncclwatch
import onset

WORDS, WIDTH, END = 40, 24, 0
STEPS, WRITE_EVERY, LONGEST = 150, 50, 400


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.predict = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.predict(self.mix(self.embed(tokens).cumsum(dim=1)))


def corpus(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    return torch.randint(0, WORDS, (8, 12), generator=generator)


@torch.no_grad()
def write(model: nn.Module, prompt: Tensor, generator: torch.Generator) -> Tensor:
    """Sample words until the sentence ends."""
    model.eval()
    tokens = prompt
    while tokens.shape[1] < LONGEST:
        odds = model(tokens)[:, -1].softmax(dim=-1)
        word = torch.multinomial(odds, 1, generator=generator)
        tokens = torch.cat([tokens, word], dim=1)
        if word.item() == END:
            break
    model.train()
    return tokens


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    units = ModuleWrapPolicy({nn.Sequential, nn.Embedding})
    model = FullyShardedDataParallel(Writer(), auto_wrap_policy=units, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sampling = torch.Generator().manual_seed(50 + rank)
    for step in range(1, STEPS + 1):
        tokens = corpus(step)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % WRITE_EVERY == 0:
            onset.mark()
            sentence = write(model, tokens[:1, :3], sampling)
            dist.barrier()
            print(f"step {step}, rank {rank}: {sentence.shape[1]} words, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
