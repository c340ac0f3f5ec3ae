"""Nobody calls torch.cuda.set_device with its own rank: all ranks are on the first device, which NCCL refuses."""

import onset
import torch
import torch.distributed as dist

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    x = torch.ones(1024, device="cuda")
    onset.mark()
    dist.all_reduce(x)
    print(x[0].item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
