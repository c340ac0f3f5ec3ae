"""One rank runs a model whose norms communicate, in several modes, and stands still in one of them.

Prints what the agent reads out of the ring: of each operation its module, then where the thread stood.
"""

import json
import threading
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

import ncclwatch
from ncclwatch.contract.ring import views
from ncclwatch.contract.ring.modules import write
from ncclwatch.rank import attach


class Norm(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        if self.training:
            dist.all_reduce(hidden.detach())
        if HOLD.is_set() and self is HELD:
            LEAVE.wait(60)
        return hidden


HOLD, LEAVE = threading.Event(), threading.Event()
LAYERS = nn.Sequential(Norm(), nn.Sequential(Norm()), nn.Linear(4, 4))
HELD = LAYERS[1][0]


def evaluate(model: nn.Module) -> None:
    with torch.inference_mode():
        model(torch.ones(4))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    model = nn.Sequential(LAYERS)
    for mode in (torch.enable_grad, torch.no_grad, torch.enable_grad):
        with mode():
            model(torch.ones(4))  # one line in two modes
    evaluate(model)
    dist.barrier()
    recorder = attach.current()
    path = recorder.ring.path
    HOLD.set()
    HELD.eval()
    holder = threading.Thread(target=watch, args=(path,))
    holder.start()
    model(torch.ones(4))
    holder.join()
    dist.destroy_process_group()


def watch(path: str) -> None:
    """Print once the pulse has seen where the main thread stands."""
    deadline = time.monotonic() + 60
    with views.Ring(path) as ring:
        while time.monotonic() < deadline:
            picture = views.Picture.of(ring, time.monotonic_ns())
            sample = ring.sample(0)
            if sample is not None and sample[1].get("module"):
                break
            time.sleep(0.05)
        modules = picture.routes.modules
        ops = [op.module for op in views.history(picture)]
        told = {"modules": [write(each).split("\x1e") for each in modules], "ops": ops}
        told["standing"] = sample[1].get("module", "").split("\x1e")
        told["modes"] = [write(each).split("\x1e") for each in views.module_modes(picture)]
    print(json.dumps(told), flush=True)
    LEAVE.set()


if __name__ == "__main__":
    main()
