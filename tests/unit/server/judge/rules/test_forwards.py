"""What is advised where only some ranks run a forward that communicates, and where that is not what went wrong."""

import pytest

from ncclwatch_server.judge import judge
from ncclwatch_server.judge.rules import ADVICE
from tests.scenarios.situation import Situation

NORM = "model/layers.*.norm/SyncNorm"
PLACE = "norm.py:30:forward for 3 numel=64 from=train.py:60:main"
EARLIER = f"history 0-2 dp#1-6 all_reduce norm.py:30:forward from=train.py:60:main module={NORM}/train/grad"


def verdict_of(*lines: str):
    situation = Situation()
    for line in ("world 3", "group dp 0-2", EARLIER, *lines):
        situation.run(line)
    (found,) = judge(situation.snapshot())
    return found


def stands_elsewhere(place: str = "train.py:64") -> str:
    return f"in 1 dp#7 all_reduce {place} for 3 numel=500"


def test_both_remedies_for_a_forward_under_no_grad():
    found = verdict_of(
        f"in 1 dp#7 all_reduce {PLACE} module=model/layers.2.norm/SyncNorm/train/no_grad",
        "in 0,2 dp#7 all_reduce train.py:64 for 3 numel=500",
    )
    assert "Run that forward on all ranks or on none" in found.advice
    assert "model.layers.2.norm.eval() before and .train() after" in found.advice
    assert "ranks 0,2 made it in train() mode and with gradients each time before" in found.explanation


def test_both_remedies_for_a_module_that_was_left_in_eval():
    found = verdict_of(
        f"in 0,2 dp#7 all_reduce {PLACE} module={NORM}/train/grad", stands_elsewhere(),
        "modes 1 model/layers.0.norm/SyncNorm/eval",
    )  # fmt: skip
    assert [culprit.rank for culprit in found.culprits] == [1]
    assert "into the same mode on all ranks" in found.advice
    assert "not depend on what a rank decides alone" in found.advice


@pytest.mark.parametrize(
    "modes",
    [
        "modes 1 model/layers.0.norm/SyncNorm/train",
        "modes 1 model/layers.0.norm/SyncNorm/eval model/layers.1.norm/SyncNorm/train",  # one is frozen everywhere
        "modes 1 model/layers.0.norm/OtherNorm/eval",
        "modes 1 model/head.norm/SyncNorm/eval",
    ],
)
def test_where_the_mode_is_one_on_all_ranks_the_advice_is_that_of_the_cause(modes: str):
    found = verdict_of(f"in 0,2 dp#7 all_reduce {PLACE} module={NORM}/train/grad", stands_elsewhere(), modes)
    assert found.advice == ADVICE[found.cause]
    assert "eval()" not in found.explanation


def test_other_arguments_to_one_call_are_not_explained_by_its_forward():
    """All are at the same line of the same module, with other sizes: that is not what only some ranks run."""
    found = verdict_of(
        f"in 0,2 dp#7 all_reduce {PLACE} module={NORM}/train/grad",
        f"in 1 dp#7 all_reduce {PLACE.replace('numel=64', 'numel=32')} module={NORM}/train/no_grad",
    )
    assert "forward of" not in found.explanation
    assert found.advice == ADVICE[found.cause]


def test_a_mode_that_is_not_known_is_no_other_mode():
    found = verdict_of(
        f"in 1 dp#7 all_reduce {PLACE} module={NORM}/train", "in 0,2 dp#7 all_reduce train.py:64 for 3 numel=500"
    )
    assert "each time before" not in found.explanation
    assert found.advice == ADVICE[found.cause]


def skipped_or_made(*, extra: bool) -> str:
    """Return what is told where rank 2 made a call in a forward too many, or the others made one that it skipped."""
    norm = f"norm.py:30:forward from=train.py:60:main module={NORM}/train/grad"
    loop = ["history 0-2 dp#{}-{} all_reduce train.py:10", "history 0-2 dp#{}-{} all_reduce train.py:20"]
    lines = [each.format(seq, seq) for seq, each in enumerate(loop * 2, 1)]
    callers, others = ("2", "0-1") if extra else ("0-1", "2")
    lines += [f"history {callers} dp#5-5 all_reduce {norm}", f"history {others} dp#5-5 all_reduce train.py:10"]
    lines += [f"history {callers} dp#6-6 all_reduce train.py:10", f"history {others} dp#6-6 all_reduce train.py:20"]
    lines += [f"in {callers} dp#7 all_reduce train.py:20 for 4", f"in {others} dp#7 barrier train.py:90 for 4"]
    situation = Situation()
    for line in ("world 3", "group dp 0-2", *lines):
        situation.run(line)
    (found,) = judge(situation.snapshot())
    assert [culprit.rank for culprit in found.culprits] == [2]
    return found.explanation


@pytest.mark.parametrize("extra", [True, False])
def test_a_call_long_ago_is_explained_by_the_forward_of_who_made_it(extra: bool):
    assert "The call is made in the forward of model.layers.*.norm (SyncNorm), in train() mode" in skipped_or_made(
        extra=extra
    )
