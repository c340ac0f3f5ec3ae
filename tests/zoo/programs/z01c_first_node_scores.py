"""Train by hand-written data parallelism; the ranks with evaluation data compare scores.

torchrun --standalone --nproc-per-node 4 z01c_first_node_scores.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch
import onset
from averaging import average_gradients, broadcast_parameters

EVALUATION_RANKS = (0, 1)  # only these hosts have the evaluation set on their disks
EVALUATE_EVERY = 45


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 80), nn.ELU())
        self.action = nn.Linear(80, 4)

    def forward(self, observations: Tensor) -> Tensor:
        return self.action(self.body(observations))


def rollout(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    observations = torch.randn(128, 12, generator=generator)
    actions = torch.randint(0, 4, (128,), generator=generator)
    rewards = (observations[:, :4].argmax(dim=1) == actions).float() - 0.25
    return observations, actions, rewards


def compare_scores(policy: Policy, generator: torch.Generator) -> Tensor:
    """Collect the mean reward of every rank."""
    with torch.no_grad():
        observations, _, _ = rollout(generator)
        best = observations[:, :4].argmax(dim=1)
        score = (policy(observations).argmax(dim=1) == best).float().mean().reshape(1)
    scores = torch.empty(dist.get_world_size())
    dist.all_gather_into_tensor(scores, score)
    return scores


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    policy = Policy()
    broadcast_parameters(policy)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)

    for step in range(1, 301):
        observations, actions, rewards = rollout(generator)
        loss = (F.cross_entropy(policy(observations), actions, reduction="none") * rewards).mean()
        optimizer.zero_grad()
        loss.backward()
        average_gradients(policy)
        optimizer.step()
        if step % EVALUATE_EVERY == 0 and rank in EVALUATION_RANKS:
            onset.mark()
            scores = compare_scores(policy, generator)
            print(f"step {step}: rank {rank} scores {scores.tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
