"""A node tells how its ranks were set up once, those that are alike together, and again when that changes."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import open_private
from ncclwatch.contract.model.preflight import RankFacts
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.layout import Word
from ncclwatch_agent.ranks import impostors, preflight
from ncclwatch_agent.ranks.preflight import FactsFile

NOW_NS = 10_000_000_000


def write(ring: Path, **values: str) -> None:
    Path(f"{ring}{config.FACTS_SUFFIX}").write_text(json.dumps({"values": values}))


def test_a_file_is_read_when_it_comes_and_when_it_changes(tmp_path: Path):
    ring = tmp_path / "0-1.ring"
    file = FactsFile(open_private(str(tmp_path)), ring.name)
    assert (file.look(), file.facts) == (False, None)
    write(ring, torch="2.13.0")
    assert file.look()
    assert file.facts == RankFacts(values=(("torch", "2.13.0"),))
    assert not file.look()
    write(ring, torch="2.13.0", backend="gloo")
    assert file.look()
    assert file.facts.get("backend") == "gloo"


def test_a_file_that_was_written_again_and_says_the_same_is_no_news(tmp_path: Path):
    ring = tmp_path / "0-1.ring"
    file = FactsFile(open_private(str(tmp_path)), ring.name)
    write(ring, torch="2.13.0")
    file.look()
    os.utime(f"{ring}{config.FACTS_SUFFIX}", ns=(1, 1))
    assert not file.look()


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str):
    ring = tmp_path / "0-1.ring"
    path = Path(f"{ring}{config.FACTS_SUFFIX}")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/hostname")
    else:
        path.mkdir()
    file = FactsFile(open_private(str(tmp_path)), ring.name)
    file.look()
    assert file.facts in (None, RankFacts())


def test_ranks_that_are_alike_are_told_together_and_silent_ones_not_at_all():
    plain, other = RankFacts(values=(("torch", "1"),)), RankFacts(values=(("torch", "2"),))
    told = preflight.grouped([(0, plain), (1, other), (2, RankFacts(values=(("torch", "1"),))), (3, None)])
    assert [(each.ranks, each.facts) for each in told] == [((0, 2), plain), ((1,), other)]


def test_what_a_ring_leaves_behind_goes_with_it(tmp_path: Path):
    ring = tmp_path / "0-1.ring"
    write(ring, torch="2.13.0")
    Path(f"{ring}{config.FACTS_SUFFIX}.new").write_text("")
    preflight.forget(open_private(str(tmp_path)), ring.name)
    assert not list(tmp_path.iterdir())


class Ring:
    """The part of a ring that tells whether its rank has come to init_process_group."""

    def __init__(self, *, initialised: bool, waits_in: WaitKind | None, pulse_ns: int) -> None:
        self._words = [0] * 40
        self._words[Word.INITIALISED], self._words[Word.PULSE_NS] = int(initialised), pulse_ns
        self._wait = SimpleNamespace(kind=waits_in) if waits_in else None

    def words(self) -> list[int]:
        return self._words

    def threads(self, words: list[int]) -> list[SimpleNamespace]:
        return [SimpleNamespace(wait=None), SimpleNamespace(wait=self._wait)]


def rank(
    pid: int,
    *,
    initialised: bool = True,
    waits_in: WaitKind | None = None,
    pulse_ns: int = NOW_NS,
    **changes: object,
) -> SimpleNamespace:
    ring = Ring(initialised=initialised, waits_in=waits_in, pulse_ns=pulse_ns)
    known = {
        "words": ring.words(),
        "rank": 0,
        "gone": False,
        "detached": False,
        "ending": None,
        "header": SimpleNamespace(pid=pid),
    }
    return SimpleNamespace(ring=ring, **(known | changes))


OTHERS = 999_999_999  # no process has this pid


def test_a_rank_takes_part_once_it_has_come_to_init():
    assert impostors.takes_part(rank(OTHERS), NOW_NS, ())
    assert impostors.takes_part(rank(OTHERS, initialised=False, waits_in=WaitKind.INIT), NOW_NS, ())
    assert not impostors.takes_part(rank(OTHERS, initialised=False), NOW_NS, ())
    assert not impostors.takes_part(rank(OTHERS, initialised=False, waits_in=WaitKind.STORE), NOW_NS, ())


@pytest.mark.parametrize("changes", [{"gone": True}, {"detached": True}, {"ending": "exited"}, {"pulse_ns": 1}])
def test_one_that_ends_or_runs_no_python_does_not(changes: dict[str, object]):
    assert not impostors.takes_part(rank(OTHERS, **changes), NOW_NS, ())


def test_a_child_of_a_rank_is_no_rank():
    assert os.getppid() in impostors.ancestors(os.getpid())
    assert impostors.takes_part(rank(os.getpid()), NOW_NS, (os.getpid(),))
    assert not impostors.takes_part(rank(os.getpid()), NOW_NS, (os.getpid(), os.getppid()))


def test_two_processes_that_take_part_as_one_rank_are_two():
    first, second = rank(OTHERS), rank(OTHERS + 1)
    assert impostors.twice({0: first}, [second], NOW_NS, ()) == (0,)
    assert impostors.twice({0: first}, [rank(OTHERS)], NOW_NS, ()) == ()  # attached again
    assert impostors.twice({0: first}, [rank(OTHERS + 1, initialised=False)], NOW_NS, ()) == ()
    assert impostors.twice({0: rank(OTHERS, gone=True)}, [second], NOW_NS, ()) == ()
