"""Three stages exchange activations and gradients in batches; the last one once gives no gradient back."""

import onset
import torch
import torch.distributed as dist
from device import begin

import ncclwatch

MICROBATCHES = 40


def exchange(*ops: dist.P2POp) -> None:
    for request in dist.batch_isend_irecv(list(ops)):
        request.wait()


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    last = dist.get_world_size() - 1
    hidden, gradient = torch.ones(65536, device=device), torch.ones(65536, device=device)
    for number in range(MICROBATCHES):
        if rank > 0:
            exchange(dist.P2POp(dist.irecv, hidden, rank - 1))
        output = hidden * 2
        if rank < last:
            exchange(dist.P2POp(dist.isend, output, rank + 1))
            exchange(dist.P2POp(dist.irecv, gradient, rank + 1))
        if number == 20:
            onset.mark()
        if rank == last and number == 20:
            continue
        if rank > 0:
            exchange(dist.P2POp(dist.isend, gradient, rank - 1))
        if rank == last:
            print(number, output[0].item(), flush=True)
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    print(total.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
