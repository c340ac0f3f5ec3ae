"""Command lines without what nobody else should read."""

import pytest

from ncclwatch.contract.words.masking import masked_command


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("train.py --lr 3e-4 --tokens 1000", "train.py --lr 3e-4 --tokens 1000"),
        ("train.py --hf-token s3cret --lr 1", "train.py --hf-token … --lr 1"),
        ("train.py --wandb_api_key=s3cret", "train.py --wandb_api_key=…"),
        ("train.py wandb.key=s3cret trainer.max_steps=3", "train.py wandb.key=… trainer.max_steps=3"),
        ("train.py --password two words --lr 1", "train.py --password … --lr 1"),
        ("train.py --password=two words more --lr 1", "train.py --password=… --lr 1"),
        ("train.py --password --lr 1", "train.py --password --lr 1"),
        ("train.py --store s3://me:s3cret@host/data", "train.py --store s3://…@host/data"),
        ("train.py --tokenizer gpt2 --keyboard x", "train.py --tokenizer gpt2 --keyboard x"),
    ],
)
def test_values_of_secret_options_are_cut(command: str, shown: str):
    assert masked_command(command.split()) == shown
