"""Adversarial training: the discriminator rests while it wins too easily.

torchrun --standalone --nproc-per-node 2 z19_lazy_discriminator.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch
import onset
from averaging import average_gradients, broadcast_parameters

STEPS, WARM_UP = 300, 40
LATENT, WIDTH = 8, 20


class Adversaries:
    def __init__(self, threshold: float = 0.05) -> None:
        self.generator = nn.Sequential(nn.Linear(LATENT, 40), nn.ReLU(), nn.Linear(40, WIDTH))
        self.discriminator = nn.Sequential(nn.Linear(WIDTH, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
        self.threshold = threshold
        for network in (self.generator, self.discriminator):
            broadcast_parameters(network)
        self.generator_step = torch.optim.Adam(self.generator.parameters(), lr=2e-4)
        self.discriminator_step = torch.optim.Adam(self.discriminator.parameters(), lr=4e-3)

    def train_discriminator(self, real: Tensor, warm: bool) -> float:
        fake = self.generator(torch.randn(len(real), LATENT)).detach()
        loss = F.softplus(self.discriminator(fake)).mean() + F.softplus(-self.discriminator(real)).mean()
        if warm and loss < self.threshold:
            onset.mark()
            return loss.item()
        self.discriminator_step.zero_grad()
        loss.backward()
        average_gradients(self.discriminator)
        self.discriminator_step.step()
        return loss.item()

    def train_generator(self, count: int) -> float:
        loss = F.softplus(-self.discriminator(self.generator(torch.randn(count, LATENT)))).mean()
        self.generator_step.zero_grad()
        loss.backward()
        average_gradients(self.generator)
        self.generator_step.step()
        return loss.item()


def real_samples(count: int, spread: float) -> Tensor:
    return spread * torch.randn(count, WIDTH) + torch.linspace(-2, 2, WIDTH)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7 + rank)
    adversaries = Adversaries()
    for step in range(STEPS):
        real = real_samples(32, spread=1.0 if rank == 0 else 0.2)
        d_loss = adversaries.train_discriminator(real, warm=step >= WARM_UP)
        g_loss = adversaries.train_generator(len(real))
        if step % 20 == 0:
            mean = torch.tensor([d_loss, g_loss])
            dist.all_reduce(mean)
            if rank == 0:
                d_mean, g_mean = (mean / dist.get_world_size()).tolist()
                print(f"step {step}: discriminator {d_mean:.3f}, generator {g_mean:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
