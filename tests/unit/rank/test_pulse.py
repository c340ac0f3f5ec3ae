"""What the pulse sees of a stack: its innermost frame, whether it changed, and what a framework does on it."""

import sys
import types

import pytest

from ncclwatch.contract.model.phases import Phase
from ncclwatch.rank.pulse import _stack_key

COMPILER = "/v/site-packages/torch/_dynamo/convert_frame.py"


def frame_of(path: str) -> types.FrameType:
    """Return a frame of code that lies in this file, called from here."""
    code = compile("frame = sys._getframe()", path, "exec")
    names: dict[str, object] = {"sys": sys}
    exec(code, names)
    frame = names["frame"]
    assert isinstance(frame, types.FrameType)
    return frame


@pytest.mark.parametrize(
    ("path", "work"),
    [(COMPILER, Phase.COMPILE), ("/u/train.py", None), ("/v/site-packages/torch/nn/modules/linear.py", None)],
)
def test_a_compiler_on_the_stack_is_seen(path: str, work: Phase | None) -> None:
    _, leaf, found = _stack_key(frame_of(path))
    assert found is work
    assert leaf == f"<module> {path}:1"


def test_a_compiler_is_seen_behind_the_frames_that_it_calls() -> None:
    code = compile("inner = make()", COMPILER, "exec")
    names: dict[str, object] = {"make": lambda: sys._getframe()}
    exec(code, names)
    inner = names["inner"]
    assert isinstance(inner, types.FrameType)
    assert _stack_key(inner)[2] is Phase.COMPILE
