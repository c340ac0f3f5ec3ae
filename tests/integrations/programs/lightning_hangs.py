"""Rank 0 alone saves a checkpoint with Lightning's Trainer, which meets all ranks. No callback of ncclwatch."""

import sys
import tempfile

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

import ncclwatch


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class SaveNow(Callback):
    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if trainer.global_step == 12 and trainer.is_global_zero:
            trainer.save_checkpoint(f"{tempfile.gettempdir()}/now.ckpt")


def main() -> None:
    ncclwatch.attach()
    data = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=2)
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, callbacks=[SaveNow()],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=sys.argv[1],
    )  # fmt: skip
    trainer.fit(Regression(), data)


if __name__ == "__main__":
    main()
