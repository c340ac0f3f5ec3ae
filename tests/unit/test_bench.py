"""What the bench proves: intervals, blocks against their neighbours, the time that is a hook's own."""

import random
import time

import pytest

from ncclwatch.contract.stacks.ownership import is_users
from tests.bench import hooks, instructions, steps
from tests.bench.intervals import Interval, added, interval, ratio, student_t
from tests.bench.steps import CONTROL, Used, compare

MS = 1000.0


def block(thread_us: float) -> Used:
    return Used(thread_us, 500.0, thread_us, 0.0, 0.0)


def drawn(generator: random.Random) -> list[float]:
    """Twenty figures round 3, a few of them far off."""
    return [generator.gauss(3.0, 10.0 if generator.random() < 0.05 else 1.0) for _ in range(20)]


@pytest.mark.parametrize(("degrees", "quantile"), [(5, 2.5706), (8, 2.3060), (32, 2.0369), (200, 1.9719)])
def test_the_quantile_is_that_of_the_tables(degrees: int, quantile: float) -> None:
    assert student_t(degrees) == pytest.approx(quantile, rel=3e-3)


def test_nineteen_of_twenty_intervals_hold_what_is_true() -> None:
    generator = random.Random(1)
    held = sum(interval(drawn(generator)).has(3.0) for _ in range(2000))
    assert 0.94 <= held / 2000 <= 0.96


def test_a_block_that_the_machine_held_up_moves_nothing() -> None:
    calm = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.03, 0.97, 1.01]
    assert interval([*calm[:-1], 40.0]).middle == pytest.approx(interval(calm).middle, abs=0.02)


def test_few_pairs_prove_nothing() -> None:
    assert not interval([1.0] * 5).reach < float("inf")
    assert interval([1.0] * 6) == Interval(1.0, 1.0, 1.0)


def test_ratios_and_differences_are_those_of_pairs() -> None:
    bare = [float(each) for each in range(1, 9)]
    assert ratio(bare, [each * 1.02 for each in bare]).low == pytest.approx(1.02)
    assert added(bare, [each + 3 for each in bare]).high == pytest.approx(3.0)


def test_a_machine_that_gets_slower_all_the_time_makes_no_difference() -> None:
    slower = [("bare" if at % 2 == 0 else "native", block((20 + at) * MS)) for at in range(41)]
    found = compare([slower], "native")
    assert (found.added_us.low, found.added_us.high) == pytest.approx((0.0, 0.0))
    assert compare([slower], CONTROL).added_us.middle == pytest.approx(0.0)


def test_what_a_recorder_takes_is_found_beside_another_recorder() -> None:
    costs = {"bare": 0.0, "native": 40.0, "python": 900.0}
    order = ["bare", "native", "bare", "python"] * 8 + ["bare"]
    blocks = [(name, block(20 * MS + costs[name])) for name in order]
    found = compare([blocks, blocks], "native")
    assert (found.pairs, found.added_us.middle) == (8, pytest.approx(40.0))
    assert found.thread.has(1 + 40.0 / (20 * MS))
    assert compare([blocks, blocks], "python").added_us.middle == pytest.approx(900.0)


def spin(milliseconds: float) -> None:
    until = time.thread_time_ns() + milliseconds * 1e6
    while time.thread_time_ns() < until:
        pass


def test_what_a_hook_replaced_is_not_the_hooks_own() -> None:
    watch = hooks.Watch()

    def make(original: hooks.Function) -> hooks.Function:
        def hook(milliseconds: float) -> None:
            spin(1)
            original(milliseconds)

        return hook

    hooked = watch.hooked("outer", make)(watch.hooked("inner", make)(spin))
    hooked(20)
    assert 1.0 <= watch.own_ns["outer"][0] / 1e6 < 5.0
    assert 1.0 <= watch.own_ns["inner"][0] / 1e6 < 5.0


def test_what_is_laid_round_a_hook_is_taken_off_its_cost() -> None:
    watch = hooks.Watch()
    nothing, idle = watch.hooked("nothing", lambda original: original)(lambda: None), watch.idle()
    for _ in range(50):
        nothing()
        idle()
    assert {name: count for name, (count, _) in watch.cost_us().items()} == {"nothing": 50}
    assert watch.cost_us()["nothing"][1] < 20.0


def test_a_hook_counts_whose_original_raises() -> None:
    watch = hooks.Watch()
    hooked = watch.hooked("hook", lambda original: original)(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hooked()
    assert len(watch.own_ns["hook"]) == 1


def test_what_is_laid_round_a_hook_is_no_line_of_the_users() -> None:
    watch = hooks.Watch()
    outer = watch.hooked("hook", lambda original: original)(lambda: None)
    assert not is_users(outer.__code__.co_filename)


@pytest.mark.parametrize(("cost_us", "agrees"), [(10.0, True), (40.0, False)])
def test_the_sum_of_the_table_agrees_where_it_lies_in_the_interval(cost_us: float, agrees: bool) -> None:
    order = ["bare", "native"] * 8 + ["bare"]
    blocks = [(name, block(20 * MS + (55.0 + at % 3 if name == "native" else 0.0))) for at, name in enumerate(order)]
    found = {"operations": 3.0, "hooks": {"wait": (2.0, 13.0)}, "pulse": 0.0005}
    rows = hooks.rows("ddp", compare([blocks], "native"), found, cost_us)
    assert [row.met for row in rows if row.budget] == [agrees]
    assert next(row for row in rows if "sum" in row.what).ours == pytest.approx(3 * cost_us + 26.0)


def test_only_what_noise_cannot_hide_is_missed() -> None:
    met = [
        steps._row("", Interval(*found), asked=True).met
        for found in ((1.1, 1.01, 1.2), (1, 0.9, 1.1), (1, 0.99, 1.004))
    ]
    assert met == [False, None, True]


def test_a_dump_of_callgrind_is_read() -> None:
    dump = "version: 1\ndesc: Trigger: Client Request: native|dist.all_reduce\nevents: Ir\nfn=(1)\n1 5\ntotals: 1234\n"
    assert instructions.read(dump) == ("native|dist.all_reduce", 1234)
    assert instructions.read("desc: Trigger: Program termination\ntotals: 7\n") is None
