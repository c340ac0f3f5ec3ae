"""Train with an operator that the first rank of a node compiles for all of them.

torchrun --standalone --nproc-per-node 3 c06_compile_first.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

# Stands for the compiler: reads a source, is busy for a while, writes a result.
COMPILER = """
import sys, time
source, target, seconds = sys.argv[1:]
ends = time.monotonic() + float(seconds)
while time.monotonic() < ends:
    tokens = open(source).read().split() * 2000
    tokens.sort()
open(target, "w").write("compiled")
"""


def load_operator(directory: Path, shape: int, seconds: float) -> None:
    """Compile the operator for a shape once per node."""
    target = directory / f"operator-{shape}.so"
    if int(os.environ["LOCAL_RANK"]) == 0:
        directory.mkdir(exist_ok=True)
        source = directory / "operator.cpp"
        source.write_text("template <int N> void operate(float* x) { for (int i = 0; i < N; ++i) x[i] *= x[i]; }")
        subprocess.run([sys.executable, "-c", COMPILER, str(source), str(target), str(seconds)], check=True)
    dist.barrier()
    assert target.exists()


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 64)
        self.outer = nn.Linear(64, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.outer(self.inner(inputs).square())


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    directory = Path(tempfile.gettempdir()) / f"operators-{os.environ['TORCHELASTIC_RUN_ID']}"
    model = DistributedDataParallel(Squares())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for shape, seconds in ((32, 1.0), (64, 13.0)):
        load_operator(directory, shape, seconds)
        for _ in range(60):
            inputs = torch.randn(shape, 32)
            loss = F.mse_loss(model(inputs), inputs.square().sum(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"shape {shape}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
