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
        ("train.py --password s3cret== --lr 1", "train.py --password … --lr 1"),
        ("train.py --token a=s3cret lr=1", "train.py --token … lr=1"),
        ("train.py --token -s3cret", "train.py --token …"),
        ("train.py --hfToken s3cret --pass s3cret", "train.py --hfToken … --pass …"),
        ("train.py --header Authorization: Bearer s3cret -n 1", "train.py --header Authorization:… -n 1"),
        ('train.py --config {"token":"s3cret"}', 'train.py --config {"token":…'),
        ("train.py --set lr=1,api_key=s3cret x=1", "train.py --set lr=1,api_key=… x=1"),
        ("train.py --args=--token s3cret", "train.py --args=…"),
        ("train.py --url=https://h/?n=1&sig=s3cret", "train.py --url=https://h/?n=1&sig=…"),
        ("train.py hf_s3cretabcdefghijklmnop", "train.py …"),
        (
            "train.py hf_model_of_somebody_else task-of-somebody-else-here",
            "train.py hf_model_of_somebody_else task-of-somebody-else-here",
        ),
    ],
)
def test_values_of_secret_options_are_cut(command: str, shown: str):
    assert masked_command(command.split()) == shown
