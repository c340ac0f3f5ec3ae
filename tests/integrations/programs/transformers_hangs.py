"""Rank 0 alone evaluates with the Trainer of transformers, which gathers from all ranks. No callback of ncclwatch."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

import ncclwatch


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": torch.ones(8) * index, "labels": torch.zeros(1)}


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        predicted = self.layer(inputs)
        return {"loss": (predicted - labels).square().mean(), "logits": predicted}


class ScoreNow(TrainerCallback):
    trainer: Trainer

    def on_step_end(self, args: TrainingArguments, state: object, control: object, **_: object) -> None:
        if self.trainer.state.global_step == 6 and self.trainer.is_world_process_zero():
            self.trainer.evaluate()


def main() -> None:
    ncclwatch.attach()
    arguments = TrainingArguments(
        output_dir=sys.argv[1], use_cpu=True, per_device_train_batch_size=2, max_steps=40, save_strategy="no",
        report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    now = ScoreNow()
    trainer = Trainer(model=Regression(), args=arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[now])
    now.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
