"""The judge is right about random programs, but for what is known, and the machine that runs them is c10d's."""

import random

import pytest

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import Op
from ncclwatch_server.judge import judge
from tests.scenarios.through_rings import through_rings
from tests.spmd import check, faults, machine, oracle, views
from tests.spmd.check import Counterexample, Trial, carried_out, draw, examined, is_known, judged, settled_s
from tests.spmd.faults import HEALTHY, Fault, What
from tests.spmd.program import Axis, Kind, Program, Stmt, lines_of
from tests.spmd.scenario import text_of
from tests.spmd.shrink import shrunk
from tests.spmd.views import Sight

# Each process that runs tests draws its own; it is printed with what fails.
FRESH = random.SystemRandom().randrange(1_000_000, 1_000_000_000)
TWO = (Axis(10, ((0, 1),)),)


def call(line: int, op: Op = Op.ALL_REDUCE, root: int = -1) -> Stmt:
    return Stmt(line, Kind.CALL, op=op, root=root, numel=10)


def ended(program: Program, fault: Fault = HEALTHY, seed: int = 1) -> list[list[bool]]:
    """Return for each rank which of its calls came to an end."""
    run = machine.run(program, faults.steps_with(program, fault), random.Random(seed))
    return [[each.done_s < machine.NEVER for each in calls] for calls in run.calls]


def wrong(first: int, count: int) -> list[Counterexample]:
    return [each for seed in range(first, first + count) for each in judged(draw(seed)) if not is_known(each)]


def told(seen: JobSnapshot) -> list[tuple[object, ...]]:
    return [(each.cause, each.certainty, [c.rank for c in each.culprits], each.victims) for each in judge(seen)]


@pytest.mark.parametrize(
    ("first", "count"), [(1, 200), pytest.param(FRESH, 500, marks=pytest.mark.fresh)], ids=["fixed seed", "fresh seed"]
)
def test_the_judge_is_right_about_random_programs_but_for_what_is_known(first: int, count: int) -> None:
    found = wrong(first, count)
    assert not found, f"seed {found[0].trial.seed}, {found[0].kind}:\n{text_of(shrunk(found[0]))}"


@pytest.mark.parametrize("seed", range(40))
def test_a_program_without_a_fault_runs_to_its_end_on_every_rank(seed: int) -> None:
    program = draw(seed).program
    run = machine.run(program, faults.steps_with(program, HEALTHY), random.Random(seed))
    assert run.how == ["exit"] * program.world


@pytest.mark.parametrize("seed", range(40))
def test_which_waits_end_does_not_depend_on_how_long_anything_takes(seed: int) -> None:
    trial = draw(seed)
    if any(stmt.kind is Kind.LOCK for stmt in lines_of(trial.program.body)):
        trial = draw(seed + 1000)  # whoever gets a lock first may be another one
    assert ended(trial.program, trial.fault, seed=1) == ended(trial.program, trial.fault, seed=2)


def test_a_rank_that_leaves_a_call_out_lets_the_other_wait_for_ever() -> None:
    program = Program(2, TWO, (call(20), call(21, Op.BARRIER)))
    assert ended(program, Fault(What.SKIP, (1,), 20)) == [[False], [False]]


def test_the_root_of_a_broadcast_goes_on_before_the_others_have_come() -> None:
    program = Program(2, TWO, (call(20, Op.BROADCAST, root=0),))
    assert ended(program, Fault(What.STALL, (1,), 20)) == [[True], []]


def test_whoever_sends_to_the_root_of_a_gather_goes_on_before_the_root_has_come() -> None:
    program = Program(2, TWO, (call(20, Op.GATHER, root=0),))
    assert ended(program, Fault(What.STALL, (0,), 20)) == [[], [True]]


def test_a_broadcast_comes_from_the_root_over_others() -> None:
    program = Program(4, (Axis(10, ((0, 1, 2, 3),)),), (call(20, Op.BROADCAST, root=0),))
    assert ended(program, Fault(What.STALL, (1,), 20)) == [[True], [], [True], [False]]


def test_the_oracle_tells_a_wait_that_ends_from_one_that_never_does() -> None:
    program = Program(2, TWO, (Stmt(19, Kind.COMPUTE, seconds=1.0), call(20)))
    late = carried_out(Trial(program, HEALTHY, 1, ((1, 19, 0, 9.0),)))
    never = carried_out(Trial(program, Fault(What.STALL, (1,), 20), 1))
    found = [oracle.at(run, Sight(5.0)) for run in (late, never)]
    assert [(each.freed, each.stuck) for each in found] == [({0}, set()), (set(), {0})]


@pytest.mark.parametrize("seed", range(12))
def test_the_judge_says_the_same_of_views_that_were_written_to_rings_and_sent(seed: int) -> None:
    trial = draw(seed)
    run = carried_out(trial)
    seen = views.snapshot(run, Sight(settled_s(run)))
    assert told(through_rings(seen)) == told(seen)


def test_a_send_is_through_at_once_or_when_it_is_received() -> None:
    pipe = Program(2, TWO, (Stmt(20, Kind.PIPE, numel=1, times=1),))
    deaf = Fault(What.STALL, (1,), 21)
    assert [ended(pipe._replace(eager=eager), deaf)[0][0] for eager in (True, False)] == [True, False]


def test_a_counterexample_made_small_still_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "judge", lambda _: ())
    found = next(each for seed in range(1, 200) for each in judged(draw(seed)))
    small = shrunk(found)
    assert small.broken in [each.broken for each in examined(small.trial, carried_out(small.trial), small.sight)]
    assert len(small.trial.program.body) < len(found.trial.program.body)


def on_two(*body: Stmt, device: bool = False) -> Program:
    return Program(2, (*TWO, Axis(11, ((0, 1),))), body, device=device)


def test_an_asynchronous_call_is_waited_for_later() -> None:
    later = (call(20)._replace(is_async=True), Stmt(21, Kind.COMPUTE), Stmt(22, Kind.WAIT, awaited=20))
    run = carried_out(Trial(on_two(*later), Fault(What.STALL, (1,), 20), 1))
    assert [len(began) for began in run.began_s] == [3, 1]
    assert run.ended_s[0] == machine.NEVER


def test_gloo_runs_two_operations_of_a_group_at_a_time() -> None:
    calls = [call(line)._replace(is_async=True) for line in (20, 21, 22)]
    program = on_two(*calls, *(Stmt(line + 10, Kind.WAIT, awaited=line) for line in (20, 21, 22)))
    for few, ends in ((20, [False, True, True]), (21, [True, False, True])):
        other = Fault(What.SHAPE, (1,), few, number=11)
        assert ended(program, other) == [ends, ends]
    both = [faults.steps_with(program, Fault(What.SHAPE, (1,), line, number=11))[1] for line in (20, 21)]
    steps = [faults.steps_with(program, HEALTHY)[0], [both[0][0], both[1][1], *both[0][2:]]]
    run = machine.run(program, steps, random.Random(1))
    assert [each.done_s < machine.NEVER for each in run.calls[0]] == [False, False, False]


@pytest.mark.parametrize(("is_async", "ends"), [(True, True), (False, False)])
def test_on_a_device_only_what_was_issued_asynchronously_lets_other_groups_go_on(is_async: bool, ends: bool) -> None:
    first = call(20)._replace(is_async=is_async)
    program = on_two(first, call(21)._replace(axis=1), Stmt(22, Kind.READ), device=True)
    assert ended(program, Fault(What.SHAPE, (1,), 20, number=11)) == [[False, ends], [False, ends]]


def test_a_host_runs_ahead_of_its_device_until_it_reads_from_it() -> None:
    program = on_two(call(20), Stmt(21, Kind.COMPUTE), Stmt(22, Kind.READ), device=True)
    run = carried_out(Trial(program, Fault(What.STALL, (1,), 20), 1))
    assert [len(began) for began in run.began_s] == [3, 1]
    assert oracle.at(run, Sight(5.0)).stuck == {0}


@pytest.mark.parametrize("device", [True, False])
def test_what_a_process_has_begun_ends_with_it(device: bool) -> None:
    program = on_two(
        call(20)._replace(is_async=True), Stmt(21, Kind.WAIT, awaited=20), Stmt(22, Kind.READ), device=device
    )
    late = Trial(program, Fault(What.KILL, (1,), 21), 1)
    steps = faults.steps_with(program, late.fault)
    steps[0].insert(0, steps[0][0]._replace(kind=Kind.COMPUTE, seconds=1.0))
    run = machine.run(program, steps, random.Random(1))
    assert run.ended_s[0] == machine.NEVER
