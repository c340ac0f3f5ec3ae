"""A U-shaped network over four pipeline stages; late in training its long skip connection is opened.

torchrun --standalone --nproc-per-node 4 z31_skip_connection.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch
import onset

WIDTH, BATCH = 32, 16
STEPS, SKIP_FROM = 150, 50
DOWN, BOTTOM, UP, HEAD = range(4)


def send(tensor: Tensor, peer: int) -> None:
    dist.send(tensor.detach().contiguous(), dst=peer)


def receive(peer: int, width: int = WIDTH) -> Tensor:
    tensor = torch.empty(BATCH, width)
    dist.recv(tensor, src=peer)
    return tensor


def receive_both(first: int, second: int) -> tuple[Tensor, Tensor]:
    tensors = torch.empty(BATCH, WIDTH), torch.empty(BATCH, WIDTH)
    requests = dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, tensors[0], first), dist.P2POp(dist.irecv, tensors[1], second)]
    )
    for request in requests:
        request.wait()
    return tensors


def down(module: nn.Module, inputs: Tensor, skip: bool) -> None:
    hidden = module(inputs)
    send(hidden, BOTTOM)
    hidden.backward(receive(BOTTOM))
    if skip:
        send(module(inputs), UP)


def bottom(module: nn.Module) -> None:
    received = receive(DOWN).requires_grad_()
    hidden = module(received)
    send(hidden, UP)
    hidden.backward(receive(UP))
    send(received.grad, DOWN)


def up(module: nn.Module, skip: bool) -> None:
    if skip:
        beside, received = receive_both(DOWN, BOTTOM)
    else:
        beside, received = torch.zeros(BATCH, WIDTH), receive(BOTTOM)
    received.requires_grad_()
    hidden = module(received + beside)
    send(hidden, HEAD)
    hidden.backward(receive(HEAD))
    send(received.grad, BOTTOM)


def head(module: nn.Module, targets: Tensor) -> float:
    received = receive(UP).requires_grad_()
    loss = F.mse_loss(module(received), targets)
    loss.backward()
    send(received.grad, UP)
    return loss.item()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)
        skip = step >= SKIP_FROM
        if skip:
            onset.mark()
        optimizer.zero_grad()
        if rank == DOWN:
            down(module, inputs, skip)
        elif rank == BOTTOM:
            bottom(module)
        elif rank == UP:
            up(module, skip)
        else:
            loss = head(module, inputs.tanh())
            if step % 10 == 0:
                print(f"step {step}: loss {loss:.4f}", flush=True)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
