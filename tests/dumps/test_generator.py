"""What holds of every drawn job, whatever is said of it afterwards."""

import json
import pickle
import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dumps.faults import HEALTHY, STALE, STALE_COPIED, What, draw_case, needs_all
from tests.dumps.flight_recorder import Form, dump, write
from tests.dumps.live import snapshot
from tests.dumps.machine import NEVER, Call, Death, Halt, Machine
from tests.dumps.program import Job, draw_job
from tests.dumps.truth import reach, roots_of, waits_of

ONE = tuple(what.value for what in What)
FEW = settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(min_value=0, max_value=10_000)


@FEW
@given(seed=SEEDS)
def test_a_job_without_a_fault_finishes_everything(seed: int):
    rng = random.Random(seed)
    machine = Machine(draw_job(rng, 8), rng)
    machine.run()
    assert {call.done_us < NEVER for host in machine.hosts.values() for call in host.calls} == {True}
    assert {host.outstanding for host in machine.hosts.values()} == {0}


@FEW
@given(seed=SEEDS, kind=st.sampled_from((*ONE, "host_stopped+device_dead", HEALTHY)))
def test_the_numbers_of_a_group_have_no_holes_on_any_rank(seed: int, kind: str):
    machine = draw_case(kind, seed, 8).machine
    numbers = [
        [call.seq for call in host.calls if (call.action.group, call.action.kind.value) == (group, "collective")]
        for host in machine.hosts.values()
        for group in machine.job.groups
    ]
    assert all(later == earlier + 1 for found in numbers for earlier, later in pairwise(found))


@FEW
@given(seed=SEEDS, kind=st.sampled_from(("host_stopped", "gil_held", "device_dead", "device_stalled")))
def test_the_one_who_waits_for_nobody_is_the_faulty_rank_and_all_others_wait_for_it(seed: int, kind: str):
    case = draw_case(kind, seed, 8)
    waits = waits_of(case.machine)
    assert roots_of(waits) == case.roots
    assert all(case.roots & reach(waits, rank) for rank in waits.keys() - case.roots)


@FEW
@given(seed=SEEDS, kind=st.sampled_from(("link_down", "call_skipped", "order_crossed")))
def test_where_nobody_waits_for_nobody_a_circle_holds_everybody(seed: int, kind: str):
    case = draw_case(kind, seed, 8)
    waits = waits_of(case.machine)
    assert roots_of(waits) == frozenset()
    assert all(case.blames[0].suspects <= reach(waits, rank) for rank in waits)


@FEW
@given(seed=SEEDS)
def test_neither_of_two_faults_explains_the_other(seed: int):
    case = draw_case("host_stopped+device_dead", seed, 8)
    waits = waits_of(case.machine)
    assert len(case.roots) == 2
    assert [reach(waits, rank) for rank in sorted(case.roots)] == [frozenset(), frozenset()]


@FEW
@given(seed=SEEDS)
def test_streams_of_one_group_end_in_the_order_of_their_issue(seed: int):
    machine = draw_case("host_stopped", seed, 8).machine
    ends = [
        [call.done_us for call in host.calls if (call.action.group, call.action.peer) == (group, -1)]
        for host in machine.hosts.values()
        for group in machine.job.groups
    ]
    assert all(found == sorted(found) for found in ends)


@FEW
@given(seed=SEEDS)
def test_a_dead_device_lists_what_its_peers_have_completed(seed: int):
    case = draw_case("device_dead", seed, 8)
    (root,) = case.roots
    last = next(call for call in case.machine.hosts[root].calls if call.begun_us < NEVER and call.done_us == NEVER)
    peers = [
        call.done_us < NEVER
        for rank, host in case.machine.hosts.items()
        for call in host.calls
        if rank != root and call.meeting is last.meeting
    ]
    listed = {entry["record_id"] for entry in dump(case.machine, root, case.at_us, Form())["entries"]}
    assert peers and all(peers)
    assert _record(case.machine, last) in listed


def _record(machine: Machine, call: Call) -> int:
    every = dump(machine, call.rank, NEVER, Form(only_active=False))["entries"]
    return int(every[call.record]["record_id"])


def test_the_same_seed_draws_the_same_files():
    first, again = (
        [dump(case.machine, rank, case.at_us, Form()) for rank in range(8)]
        for case in (draw_case("host_stopped", 3, 8), draw_case("host_stopped", 3, 8))
    )
    assert first == again


def test_a_stopped_host_that_has_finished_everything_lists_nothing_and_its_status_speaks_for_it():
    case = draw_case("host_stopped", 0)
    (root,) = case.roots
    value = dump(case.machine, root, case.at_us, Form())
    assert value["entries"] == []
    assert all(
        row["last_enqueued_collective"] == row["last_completed_collective"] for row in value["pg_status"].values()
    )
    assert {row["last_started_collective"] for row in value["pg_status"].values()} == {-1}


def test_status_is_keyed_by_the_own_number_of_a_group_and_config_by_its_name():
    case = draw_case("host_stopped", 1)
    value = dump(case.machine, 5, case.at_us, Form(only_active=False))
    own = [group.name for group in case.machine.job.groups_of(5)]
    assert {(entry["process_group"][0], entry["pg_id"]) for entry in value["entries"]} <= {
        (name, n) for n, name in enumerate(own)
    }
    assert [sorted(value["pg_status"], key=int)] == [
        [str(own.index(name)) for name in sorted(value["pg_config"], key=int)]
    ]


def test_an_active_only_dump_is_a_full_one_without_what_is_finished():
    case = draw_case("device_dead", 2, 8)
    full = dump(case.machine, 3, case.at_us, Form(only_active=False))["entries"]
    active = dump(case.machine, 3, case.at_us, Form())["entries"]
    assert active == [entry for entry in full if entry["state"] != "completed"]
    assert 100_000 > full[0]["record_id"] > 10_000


@pytest.mark.parametrize("form", [Form(), Form(version="2.10", as_json=True)], ids=["pickle", "json"])
def test_files_are_read_back_as_they_were_meant(tmp_path, form: Form):
    case = draw_case("host_stopped", 0, 8)
    write(case, tmp_path, form)
    (root,) = case.roots
    paths = sorted(tmp_path.iterdir())
    read = [json.loads(p.read_bytes()) if form.as_json else pickle.loads(p.read_bytes()) for p in paths]
    assert len(read) == 8
    assert {each["version"] for each in read} == {form.version}
    assert [bool(each.get("entries")) for each in read] == [rank != root for rank in range(8)]
    assert ["entries" in each for each in read] == [rank != root or not form.as_json for rank in range(8)]


@pytest.mark.parametrize(("kind", "copied"), [(STALE, False), (STALE_COPIED, True)])
def test_a_stale_file_is_of_an_innocent_and_shows_less(kind: str, copied: bool):
    case = draw_case(kind, 4, 8)
    ((rank, early_us),) = case.early.items()
    early, late = (dump(case.machine, rank, us, Form(only_active=False)) for us in (early_us, case.at_us))
    assert rank not in case.roots
    assert case.copied is copied
    assert 1 <= len(late["entries"]) - len(early["entries"]) <= 8


def test_the_live_views_of_a_moment_have_the_counters_of_its_files():
    case = draw_case("host_stopped", 5, 8)
    views = snapshot(case).ranks
    value = dump(case.machine, 6, case.at_us, Form())
    names = sorted(value["pg_config"], key=int)
    told = {
        name: (int(row["last_enqueued_collective"]), int(row["last_completed_collective"]))
        for name, row in zip(
            names, (value["pg_status"][key] for key in sorted(value["pg_status"], key=int)), strict=True
        )
    }
    messages = {peer.group for peer in views[6].peers}  # NCCL's status mixes their numbers with those of collectives
    counted = [group for group in views[6].groups if group.name not in messages]
    assert counted
    assert {g.name: (g.enqueued, g.completed) for g in counted} == {g.name: told[g.name] for g in counted}


def test_a_halt_and_a_death_are_roots_by_different_signs():
    rng = random.Random(11)
    job = draw_job(rng, 8)
    halted = Machine(job, random.Random(1), [Halt(rank=2, action=len(job.steps[2]))])
    dead = Machine(job, random.Random(1), [Death(rank=2, call=_first_shared(job, 2))])
    for machine in (halted, dead):
        machine.run()
    assert 2 in roots_of(waits_of(halted)) and 2 not in halted.dead
    assert 2 in roots_of(waits_of(dead)) and 2 in dead.dead


def _first_shared(job: Job, rank: int) -> int:
    calls = [action for action in job.steps[rank] if action.is_call]
    return next(n for n, action in enumerate(calls) if needs_all(job, action))


def test_sixty_four_ranks_can_be_drawn():
    case = draw_case("host_stopped", 0, 64)
    assert len(case.machine.hosts) == 64
    assert roots_of(waits_of(case.machine)) == case.roots
