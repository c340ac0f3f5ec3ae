"""The main process alone gathers a loss with Accelerate. No tracker of ncclwatch."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(200, 8)), batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for number, (rows,) in enumerate(data):
        loss = model(rows).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if number == 12 and accelerator.is_main_process:
            print(accelerator.gather(loss.detach()).mean().item(), flush=True)


if __name__ == "__main__":
    main()
