"""Data parallelism by hand: average the gradients of all ranks in one tensor."""

import torch
import torch.distributed as dist
from torch import nn


def broadcast_parameters(network: nn.Module) -> None:
    for parameter in network.parameters():
        dist.broadcast(parameter.data, src=0)


def average_gradients(network: nn.Module) -> None:
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    begin = 0
    for gradient in gradients:
        gradient.copy_(flat[begin : begin + gradient.numel()].view_as(gradient))
        begin += gradient.numel()
