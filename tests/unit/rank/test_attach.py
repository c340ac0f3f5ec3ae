"""attach() keeps Python's garbage collector out of the way, and takes what records fastest here."""

import contextlib
import gc
from collections.abc import Iterator
from types import ModuleType

import pytest

import ncclwatch
from ncclwatch.native import loading
from ncclwatch.native.build import NativeError
from ncclwatch.rank import attach


@pytest.fixture(params=[True, False], ids=["on", "off"])
def collects(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the program lets the collector run."""
    (gc.enable if request.param else gc.disable)()
    yield request.param
    gc.enable()


@pytest.mark.parametrize("trouble", [None, KeyboardInterrupt])
def test_the_collector_rests_meanwhile_and_is_left_as_it_was(
    collects: bool, trouble: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
):
    seen = []

    def begin(native: bool | str, on_hang: str, notes: bool) -> None:
        seen.append(gc.isenabled())
        if trouble:
            raise trouble

    monkeypatch.setattr(attach, "attach", begin)
    with contextlib.suppress(KeyboardInterrupt):
        ncclwatch.attach()
    assert seen == [False]
    assert gc.isenabled() is collects


@pytest.mark.parametrize(
    ("wanted", "said", "taken"),
    [
        ("auto", None, True),
        (True, None, True),
        ("auto", "without-torch", True),
        (False, "without-torch", True),
        (False, None, False),
        ("auto", "0", False),
    ],
)
def test_without_a_torch_side_the_hot_path_in_c_is_taken_unless_python_alone_is_asked_for(
    wanted: bool | str, said: str | None, taken: bool, monkeypatch: pytest.MonkeyPatch
):
    module = ModuleType("hot")
    monkeypatch.setattr(loading, "load_alone", lambda: module)
    monkeypatch.delenv("NCCLWATCH_NATIVE", raising=False)
    if said:
        monkeypatch.setenv("NCCLWATCH_NATIVE", said)
    assert (attach._load_hot(wanted) is module) == taken


def test_a_hot_path_that_does_not_load_is_said_and_done_without(monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise NativeError("it does not load")

    monkeypatch.setattr(loading, "load_alone", fail)
    monkeypatch.delenv("NCCLWATCH_NATIVE", raising=False)
    monkeypatch.setattr(attach, "_said", set())
    with pytest.warns(RuntimeWarning, match="it does not load. Everything is recorded in Python"):
        assert attach._load_hot("auto") is None


@pytest.mark.parametrize(
    ("argv", "launched", "title"),
    [
        (["/home/ada/train.py", "--lr", "1"], {}, "train.py"),
        (["/home/ada/train.py"], {"NCCLWATCH_JOB": "team/llm"}, ""),
        (["/home/ada/train.py"], {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "llm"}, "llm"),
        (["-c"], {}, ""),
        ([], {}, ""),
    ],
)
def test_a_job_that_nobody_has_named_is_called_by_its_script(
    argv: list[str], launched: dict[str, str], title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", argv)
    assert attach._title(launched) == title
