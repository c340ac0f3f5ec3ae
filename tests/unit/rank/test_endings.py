"""What a rank leaves behind about its own end, whoever else listens for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.ring import facts
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.views import parse_note

BEGIN = """
import io, sys
from ncclwatch.rank import endings
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile
recorder = Recorder(RingFile(sys.argv[1], rank=0, local_rank=0, world=(1, 1), attempt=0))
endings.install(Patches(), lambda: recorder, lambda: None)
"""
ANOTHER_HOOK = """
sys.excepthook = lambda *told: None
raise ValueError("of the program")
"""
BROKEN_HOOK = """
inner = sys.excepthook
def hook(*told):
    sys.stderr = io.StringIO()  # as torch's does, until it is through
    raise RuntimeError("from a signal handler")
    inner(*told)
sys.excepthook = hook
raise ValueError("of the program")
"""
OUR_HOOK = 'raise ValueError("of the program")'
ENDS_WELL = ""
HANDLED = """
try:
    raise ValueError("of the program")
except ValueError:
    pass
"""
PRINTED_BY_OTHERS = """
def called_from_c():
    raise ValueError("of a callback")
try:
    called_from_c()
except ValueError as error:
    error.__traceback__ = error.__traceback__.tb_next
    sys.last_value = error
"""
CALLS_EXIT = "sys.exit(3)"
CALLS_EXIT_WELL = "sys.exit(0)"
EXITS_WITH_IT_IN_HAND = """
try:
    raise ValueError("of the program")
except ValueError:
    sys.exit(1)
"""
PRINTS_IT_AND_EXITS = """
import traceback
try:
    raise ValueError("of the program")
except ValueError:
    traceback.print_exc()
sys.exit(1)
"""
LOGS_IT_AND_EXITS = """
import logging
try:
    raise ValueError("of the program")
except ValueError:
    logging.exception("failed")
raise SystemExit(1)
"""
PRINTS_IT_AND_GOES_ON = """
import traceback
try:
    raise ValueError("of the program")
except ValueError:
    traceback.print_exc()
recorder.thread().issued += 1
sys.exit(3)
"""

HANDED_TO_THE_HOOK = """
try:
    raise ValueError("of the program")
except ValueError:
    sys.excepthook(*sys.exc_info())
recorder.thread().issued += 1
"""
ENDED_BY_A_THREAD = """
import os, threading, traceback
try:
    raise ValueError("of the program")
except ValueError:
    traceback.print_exc()
recorder.thread().issued += 1
thread = threading.Thread(target=os._exit, args=(1,))
thread.start(); thread.join()
"""
EXITS_IN_A_HANDLER = """
import queue, signal
signal.signal(signal.SIGTERM, lambda *told: sys.exit(143))
try:
    queue.Queue().get_nowait()
except queue.Empty:
    signal.raise_signal(signal.SIGTERM)
"""
MADE_OF_ANOTHER = """
try:
    raise RuntimeError("Connection closed by peer [1]:2")
except RuntimeError as error:
    raise KeyError("writer") from error
"""
RAISED_WHILE_CLEANING_UP = """
try:
    raise RuntimeError("Connection closed by peer [1]:2")
finally:
    {}["writer"]
"""

IN_A_THREAD = """
import threading
def work():
    raise ValueError("of a thread")
thread = threading.Thread(target=work, name="filler")
thread.start(); thread.join()
"""
LEAVES_A_THREAD = """
import threading
thread = threading.Thread(target=sys.exit, name="filler")
thread.start(); thread.join()
"""


def lost_thread_of(program: str, ring: Path) -> facts.Facts:
    """Run a program, and return what its ring says of itself."""
    ended = subprocess.run([sys.executable, "-", str(ring)], input=program, text=True, capture_output=True, timeout=60)
    with Ring(str(ring)) as reader:
        found = facts.parse(reader.string(reader.words()[Word.FACTS]))
    assert ("ValueError: of a thread" in ended.stderr) == (found.thread is not None)  # as without us
    return found


def ending_of(program: str, ring: Path, *how: str) -> Ending | None:
    """Run a program, and return what its ring says of its end."""
    subprocess.run([sys.executable, *how, str(ring)], input=program, text=True, capture_output=True, timeout=60)
    with Ring(str(ring)) as reader:
        return parse_note(reader.string(reader.words()[Word.ENDED]))


@pytest.mark.parametrize("end", [OUR_HOOK, ANOTHER_HOOK, BROKEN_HOOK])
def test_an_exception_that_ends_the_program_is_known_whatever_hook_tells_of_it(end: str, tmp_path: Path) -> None:
    found = ending_of(BEGIN + end, tmp_path / "0-1.ring", "-")
    assert found is not None
    assert (found.kind, found.exit_code, found.exception) == ("crashed", 1, "ValueError: of the program")


@pytest.mark.parametrize("end", [ENDS_WELL, HANDLED, PRINTED_BY_OTHERS, CALLS_EXIT_WELL])
def test_a_program_that_no_exception_ends_has_exited(end: str, tmp_path: Path) -> None:
    found = ending_of(BEGIN + end, tmp_path / "0-1.ring", "-")
    assert found is not None
    assert (found.kind, found.exit_code, found.exception) == ("exited", None, "")


@pytest.mark.parametrize("end", [CALLS_EXIT, PRINTS_IT_AND_GOES_ON])
def test_the_code_that_a_program_exits_with_is_known_before_the_kernel_tells_it(end: str, tmp_path: Path) -> None:
    found = ending_of(BEGIN + end, tmp_path / "0-1.ring", "-")
    assert found is not None
    assert (found.kind, found.exit_code, found.exception) == ("crashed", 3, "")


@pytest.mark.parametrize("end", [EXITS_WITH_IT_IN_HAND, PRINTS_IT_AND_EXITS])
def test_an_exception_that_the_program_caught_before_it_exited_is_kept(end: str, tmp_path: Path) -> None:
    found = ending_of(BEGIN + end, tmp_path / "0-1.ring", "-")
    assert found is not None
    assert (found.kind, found.exit_code, found.exception) == ("crashed", 1, "ValueError: of the program")


def test_an_exception_that_was_logged_is_kept_where_nobody_knows_the_code_yet(tmp_path: Path) -> None:
    found = ending_of(BEGIN + LOGS_IT_AND_EXITS, tmp_path / "0-1.ring", "-")
    assert found is not None
    assert (found.kind, found.exit_code, found.exception) == ("exited", None, "ValueError: of the program")


def test_an_exception_that_the_program_hands_to_the_hook_itself_does_not_end_it(tmp_path: Path) -> None:
    """Years may pass between it and the end."""
    found = ending_of(BEGIN + HANDED_TO_THE_HOOK, tmp_path / "0-1.ring", "-")
    assert found is not None
    assert (found.kind, found.exception) == ("exited", "")


def test_a_thread_that_ends_the_process_has_not_what_the_main_thread_printed_before_it_went_on(tmp_path: Path) -> None:
    found = ending_of(BEGIN + ENDED_BY_A_THREAD, tmp_path / "0-1.ring", "-")
    assert found is not None
    assert (found.kind, found.exit_code, found.exception) == ("crashed", 1, "")


def test_an_exception_that_a_signal_handler_has_interrupted_is_no_reason_for_its_exit(tmp_path: Path) -> None:
    found = ending_of(BEGIN + EXITS_IN_A_HANDLER, tmp_path / "0-1.ring", "-")
    assert found is not None
    assert (found.kind, found.exit_code, found.exception) == ("crashed", 143, "")


@pytest.mark.parametrize("made", [MADE_OF_ANOTHER, RAISED_WHILE_CLEANING_UP])
def test_an_exception_that_was_made_of_another_one_has_that_one_with_it(made: str, tmp_path: Path) -> None:
    found = ending_of(BEGIN + made, tmp_path / "0-1.ring", "-")
    assert found is not None
    assert found.exception == "KeyError: 'writer' (after RuntimeError: Connection closed by peer [1]:2)"


def test_os_exit_keeps_the_exception_in_hand(tmp_path: Path) -> None:
    end = EXITS_WITH_IT_IN_HAND.replace("sys.exit(1)", "import os; os._exit(4)")
    found = ending_of(BEGIN + end, tmp_path / "0-1.ring", "-")
    assert found is not None
    assert (found.kind, found.exit_code, found.exception) == ("crashed", 4, "ValueError: of the program")


def test_a_module_that_is_run_has_its_exception_found_below_the_frames_that_run_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BEGIN + ANOTHER_HOOK)
    command = [sys.executable, "-m", "program", str(tmp_path / "0-1.ring")]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    with Ring(str(tmp_path / "0-1.ring")) as reader:
        found = parse_note(reader.string(reader.words()[Word.ENDED]))
    assert found is not None
    assert found.exception == "ValueError: of the program"


def test_an_exception_that_ends_a_thread_is_known(tmp_path: Path) -> None:
    found = lost_thread_of(BEGIN + IN_A_THREAD, tmp_path / "0-1.ring")
    assert found.thread is not None
    assert (found.thread.name, found.thread.exception) == ("filler", "ValueError: of a thread")
    assert found.thread_ns > 0


def test_a_thread_that_leaves_is_ended_by_no_exception(tmp_path: Path) -> None:
    assert lost_thread_of(BEGIN + LEAVES_A_THREAD, tmp_path / "0-1.ring").thread is None
