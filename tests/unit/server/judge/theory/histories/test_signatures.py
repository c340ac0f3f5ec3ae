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


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "root"),
    [
        ("scatter", [[4], [4]], [[4]], True),
        ("scatter", [], [[4]], False),
        ("gather", [[4]], [[4], [4]], True),
        ("gather", [[4]], [], False),
    ],
)
def test_who_hands_out_or_takes_in_what_the_others_do_not_is_the_root(
    name: str, inputs: list[list[int]], outputs: list[list[int]], root: bool
):
    assert signature_of(name, {"input_sizes": inputs, "output_sizes": outputs}).root is root
