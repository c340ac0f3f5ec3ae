"""What a line is calling, read from its code object while it stands there."""

import sys
import threading
from collections.abc import Callable
from types import FrameType

import pytest

from ncclwatch.rank.where.calls import call_name

if sys.version_info < (3, 11):
    pytest.skip("Python 3.10 keeps no positions of instructions", allow_module_level=True)


class Device:
    """Stands in for a tensor: its calls wait until the test has looked."""

    def __init__(self) -> None:
        self.entered, self.looked = threading.Event(), threading.Event()
        self.inner = self

    def wait_here(self, *_: object, **__: object) -> float:
        self.entered.set()
        self.looked.wait(10)
        return 1.0

    item = cpu = __float__ = wait_here

    def __bool__(self) -> bool:
        return self.wait_here() > 0

    def __add__(self, other: object) -> float:
        return self.wait_here(other)


def in_a_sum(x: Device) -> None:
    total = 1.0
    total += x.item()


def behind_an_attribute_with_arguments(x: Device) -> None:
    _ = [1, x.inner.cpu(2, memory_format=(3 + x.entered.is_set())), 2]


def as_an_argument(x: Device) -> None:
    print(f"{max(x.item(), 2):.1f}", end="")


def on_several_lines(x: Device) -> None:
    _ = (
        x
        .cpu(
            1,
        )
    )  # fmt: skip


def by_a_builtin(x: Device) -> None:
    float(x)


def by_a_test(x: Device) -> None:
    if x:
        pass


def by_an_operator(x: Device) -> None:
    _ = x + 1


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (in_a_sum, "item"),
        (behind_an_attribute_with_arguments, "cpu"),
        (as_an_argument, "item"),
        (on_several_lines, "cpu"),
        (by_a_builtin, "float"),
        (by_a_test, ""),
        (by_an_operator, ""),
    ],
)
def test_the_call_in_progress_has_a_name_where_there_is_a_call(line: Callable[[Device], None], name: str):
    device = Device()
    thread = threading.Thread(target=line, args=(device,))
    thread.start()
    device.entered.wait(10)
    frame: FrameType | None = sys._current_frames()[thread.ident or 0]
    while frame is not None and frame.f_code is not line.__code__:
        frame = frame.f_back
    assert frame is not None
    found = call_name(frame.f_code, frame.f_lasti)
    device.looked.set()
    thread.join()
    assert found == name
