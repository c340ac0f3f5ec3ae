"""Where a stack stands, by the names of its frames."""

import pytest

from ncclwatch.contract.model.rank import CallSite, StackFrame
from ncclwatch.contract.stacks.places import Doing, Place, is_own_thread, place_of, telling

TORCH = "/env/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
WRAPPER = ("_exception_logger.<locals>.wrapper", f"{TORCH}/distributed/c10d_logger.py", 83)
MAIN = (("train", "/home/u/train.py", 97), ("<module>", "/home/u/train.py", 140))
ENGINE = ("_engine_run_backward", f"{TORCH}/autograd/graph.py", 979)
BACKWARD = (ENGINE, ("Tensor.backward", f"{TORCH}/_tensor.py", 500))
SITE = CallSite(file="/home/u/train.py", line=97, function="train")


def stack(*frames: tuple[str, str, int]) -> tuple[StackFrame, ...]:
    return tuple(StackFrame(function=name, file=file, line=line) for name, file, line in frames)


@pytest.mark.parametrize(
    ("inner", "doing", "call"),
    [
        ([("all_reduce", C10D, 3252), WRAPPER], Doing.COMMUNICATION, "all_reduce"),
        ([("all_gather", C10D, 1), ("all_gather_object", C10D, 2), WRAPPER], Doing.COMMUNICATION, "all_gather_object"),
        ([("__init__", f"{TORCH}/x.py", 1), ("get_rank", C10D, 2)], Doing.CODE, "__init__"),
        (BACKWARD, Doing.BACKWARD, "backward"),
        ([("c10d::Work::wait", "libtorch_cpu.so", 0), *BACKWARD], Doing.COMMUNICATION, "backward"),
        ([("c10d::Work::wait", "libtorch_cpu.so", 0)], Doing.COMMUNICATION, "a wait for torch.distributed"),
        ([("pthread_cond_wait", "libc.so.6", 0)], Doing.CODE, ""),
        ([("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1)], Doing.DATA, ""),
        ([("Queue.get", "/usr/lib/python3.11/queue.py", 171)], Doing.CODE, "get"),
        ([], Doing.CODE, ""),
    ],
)  # fmt: skip
def test_a_stack_tells_what_the_users_line_is_inside_of(inner, doing, call):
    assert place_of(stack(*inner, *MAIN)) == Place(doing=doing, call=call, site=SITE)


def test_what_torch_does_while_it_is_imported_is_an_import():
    loading = [
        ("<module>", f"{TORCH}/utils/data/dataloader.py", 5),
        ("_find_and_load", "<frozen importlib._bootstrap>", 1176),
        ("<module>", f"{TORCH}/__init__.py", 2),
        ("_find_and_load", "<frozen importlib._bootstrap>", 1176),
    ]
    assert place_of(stack(*loading, *MAIN)).words == "at train.py:97 in train(), calling import"


def test_a_line_of_a_module_that_is_imported_is_the_users_line():
    frames = stack(
        ("barrier", C10D, 5), ("<module>", "/home/u/other.py", 3), ("_load", "<frozen importlib._bootstrap>", 1), *MAIN
    )
    assert place_of(frames).brief == "in barrier other.py:3"


def test_places_in_words():
    assert place_of(stack(("barrier", C10D, 1), *MAIN)).words == "in barrier at train.py:97 in train()"
    assert place_of(stack(*MAIN)).brief == "in train train.py:97"
    assert place_of(()).words == "at an unknown place"
    assert place_of(stack(("f", f"{TORCH}/a.py", 1))).words == "at an unknown line"


def test_our_own_frames_and_threads_are_left_out():
    ours = ("_issue", "/env/ncclwatch/rank/patches/kernels.py", 5)
    assert telling(stack(ours, *MAIN)) == stack(*MAIN)
    pulse = stack(("wait", "/usr/lib/python3.11/threading.py", 1), ("_run", "/env/ncclwatch/rank/pulse.py", 2))
    assert is_own_thread("Thread-1", pulse) and not is_own_thread("MainThread", stack(*MAIN))
