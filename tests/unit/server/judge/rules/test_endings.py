"""Ranks that ended by themselves, and those taken along. An end that was no failure accuses nobody."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server.judge import judge
from ncclwatch_server.judge.rules.frames.ends import ending_words
from ncclwatch_server.judge.theory.ends.kinds import lost_peer, was_told
from tests.scenarios.situation import Situation


def judged(*lines: str, endings: dict[int, Ending]) -> tuple[Verdict, ...]:
    situation = Situation()
    for line in lines:
        situation.run(line)
    for rank, ending in endings.items():
        situation.ranks[rank] = replace(situation.ranks[rank], ending=ending)
    return judge(situation.snapshot())


@pytest.mark.parametrize(
    ("ending", "alarms"),
    [
        (Ending(kind="exited", exit_code=0), False),
        (Ending(kind="exited"), False),  # it said so itself, and nobody saw the code
        (Ending(kind="crashed", exit_code=0), False),  # its hooks noted an error, and it exited well after all
        (Ending(kind="vanished"), False),
        (Ending(kind="crashed", exit_code=3), False),  # a launcher may have ended it so, as ray.kill() does
        (Ending(kind="crashed", exit_code=1, exception="ValueError: bad label"), True),
        (Ending(kind="signalled", signal=9), True),
    ],
)
def test_an_end_that_nobody_waits_for_is_told_only_if_it_says_what_failed(ending: Ending, alarms: bool):
    found = judged("world 2", "group dp 0-1", endings={1: replace(ending, age_s=9.0)})
    assert bool(found) is alarms


@pytest.mark.parametrize(
    ("ending", "victim"),
    [
        (Ending(kind="signalled", signal=15), True),
        (Ending(kind="crashed", exit_code=143), True),  # a handler or a shell that passes SIGTERM on
        (Ending(kind="crashed", exit_code=137), False),
        (Ending(kind="signalled", signal=9), False),
        (Ending(kind="crashed", exit_code=1, exception="KeyboardInterrupt: "), True),
        (Ending(kind="crashed", exit_code=1, exception="RuntimeError: Connection closed by peer [::1]:1"), True),
        (Ending(kind="crashed", exit_code=1, exception="ValueError: bad label"), False),
        (Ending(kind="exited", exit_code=0), False),
    ],
)
def test_who_lost_a_peer_or_was_told_to_stop_is_a_victim(ending: Ending, victim: bool):
    assert (was_told(ending) or lost_peer(ending)) is victim


@pytest.mark.parametrize(
    ("killed_s", "launcher"),
    [(8.0, True), (8.1, False), (3.0, True), (12.0, False)],
)
def test_sigkill_two_seconds_after_sigterm_is_the_launchers_second_word(killed_s: float, launcher: bool):
    """Rank 0 was told to stop ten seconds ago. A rank killed sooner after that was killed by something else."""
    endings = {
        0: Ending(kind="signalled", signal=15, age_s=10.0),
        1: Ending(kind="signalled", signal=9, age_s=killed_s),
    }
    assert (judged("world 2", "group dp 0-1", endings=endings) == ()) is launcher


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (  # "... (localhost, 9). at train.py:18" reads as two sentences
            Ending(kind="crashed", exit_code=1, exception="DistNetworkError: timed out connecting to (localhost, 9)."),
            "ended with DistNetworkError: timed out connecting to (localhost, 9)",
        ),
        (Ending(kind="signalled", signal=11), "was killed by SIGSEGV"),
        (Ending(kind="signalled", signal=77), "was killed by signal 77"),
        (Ending(kind="crashed", exit_code=3), "ended with exit code 3"),
        (Ending(kind="vanished"), "vanished without a trace"),
        (Ending(kind="exited", exit_code=0), "exited with code 0"),
    ],
)
def test_an_end_is_told_as_it_was(ending: Ending, words: str):
    assert ending_words(ending) == words


def lost(error: str, seen_s: float = 0.0, world: int = 2) -> tuple[Verdict, ...]:
    """Return what is said where rank 0 raised ten seconds ago and rank 1, which lives, was seen so long ago."""
    return judged(
        f"world {world}", "group dp 0-1", f"seen 1 {seen_s}", *(["unseen 2"] if world > 2 else []),
        endings={0: Ending(kind="crashed", exit_code=1, exception=error, age_s=10.0)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("DistNetworkError: connection reset by peer", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("RuntimeError: [/gloo] Connection closed by peer", False),
        ("DistStoreError: timed out waiting for a key", False),
    ],
)
def test_a_store_or_a_pipe_is_lost_only_where_no_rank_was(error: str, told: bool):
    assert bool(lost(error)) is told


@pytest.mark.parametrize(("seen_s", "told"), [(4.9, True), (5.0, False), (12.0, False)])
def test_that_no_rank_was_lost_is_known_once_all_were_seen_long_after(seen_s: float, told: bool):
    assert bool(lost("DistNetworkError: connection reset by peer", seen_s)) is told


def test_that_no_rank_was_lost_is_not_known_where_one_was_never_seen():
    assert lost("DistNetworkError: connection reset by peer", world=3) == ()
