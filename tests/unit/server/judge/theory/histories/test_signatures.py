"""Signatures of recorded operations: what members must agree on."""

import pytest

from ncclwatch_server.judge.theory.histories.signatures import signature_of


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "dtype"),
    [
        ("scatter", ["Undefined"], ["Float"], "float32"),  # who is not the root hands in a tensor that is none
        ("gather", ["Float"], ["Undefined"], "float32"),
        ("all_reduce", ["Float"], [], "float32"),
        ("all_reduce", [], ["Float"], "float32"),
        ("barrier", ["Float"], ["Float"], ""),
    ],
)
def test_the_type_is_that_of_the_tensor_which_every_member_has(
    name: str, inputs: list[str], outputs: list[str], dtype: str
):
    assert signature_of(name, {"input_dtypes": inputs, "output_dtypes": outputs}).dtype == dtype
