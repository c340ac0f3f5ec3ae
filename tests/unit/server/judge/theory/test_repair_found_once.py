"""The same tapes are searched once, and others are never taken for them."""

import pytest

from ncclwatch.contract.model.rank import Op
from ncclwatch_server.judge.theory import repair
from ncclwatch_server.judge.theory.repair.findings import Finding
from ncclwatch_server.judge.theory.repair.tapes import Call, End, Tapes, write

A, B = (Call(group="g", op=op) for op in (Op.ALL_REDUCE, Op.BARRIER))


def tapes(*calls: Call, end: End = End.BLOCKED) -> Tapes:
    return write({"g": (0, 1, 2)}, {0: [A, B], 1: [A, B], 2: calls}, {2: end})


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[Tapes]:
    found: list[Tapes] = []
    monkeypatch.setattr(repair, "find", lambda each: found.append(each) or Finding())
    repair._found.cache_clear()
    yield found
    repair._found.cache_clear()


def test_the_same_tapes_are_searched_once(searched: list[Tapes]) -> None:
    assert repair.find_once(tapes(A)) is repair.find_once(tapes(A))
    assert len(searched) == 1


def test_other_calls_and_another_end_are_searched(searched: list[Tapes]) -> None:
    for each in (tapes(A), tapes(A, B), tapes(A, end=End.STANDS), tapes(A, end=End.FAILED)):
        repair.find_once(each)
    assert len(searched) == 4
