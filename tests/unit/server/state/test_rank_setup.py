"""What ranks say of their setup is kept once for all that are alike, and compared when it has changed."""

from ncclwatch.contract import wire
from ncclwatch.contract.model.job import Habit, WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.preflight import ModelFacts, RankFacts
from ncclwatch_server import limits
from ncclwatch_server.state.rank_setup import Likeness

PLAIN = RankFacts(values=(("backend", "nccl"), ("launcher", "elastic")))
RING = RankFacts(values=(("NCCL_ALGO", "Ring"), ("backend", "nccl"), ("launcher", "elastic")))


def said(*alike: tuple[RankFacts, tuple[int, ...]], joined: tuple[int, ...] = (), twice: tuple[int, ...] = ()):
    found = tuple(wire.Alike(ranks=ranks, facts=facts) for facts, ranks in alike)
    return wire.Facts(index=0, alike=found, joined=joined, twice=twice)


def model(*units: str) -> RankFacts:
    wrapped = ModelFacts(kind="DDP", members="0-3", units=units, order="o", names="n", total=2)
    return RankFacts(values=PLAIN.values, models=(wrapped,))


def test_ranks_that_are_alike_are_one_entry_and_nothing_to_look_at():
    known = Likeness()
    for node in range(100):
        facts = RankFacts(values=tuple(PLAIN.values))  # each decoded from a message of its own
        known.receive_facts(f"agent{node}", f"node{node}", said((facts, (2 * node, 2 * node + 1))), 0.0)
    assert known.compare(10.0, 200, {}) == ()
    (alike,) = known.setup.alike
    assert alike.ranks == tuple(range(200))


def test_one_rank_of_either_side_is_worth_a_look():
    known = Likeness()
    known.receive_facts("a", "node0", said((PLAIN, (0, 1, 2)), (RING, (3,))), 0.0)
    assert known.compare(10.0, 4, {}) == (0, 3)


def test_ranks_that_have_not_spoken_are_waited_for_and_not_for_ever():
    known = Likeness()
    known.receive_facts("a", "node0", said((RING, (0, 1))), 10.0)
    known.receive_facts("b", "node1", said((PLAIN, (2,))), 10.1)
    assert known.compare(10.2, 8, {}) == ()
    assert known.compare(10.1 + limits.SETUP_S, 8, {}) == (0, 2)


def test_it_is_compared_at_most_once_a_tick_and_only_when_something_has_changed():
    known = Likeness()
    known.receive_facts("a", "node0", said((PLAIN, (0, 1, 2)), (RING, (3,))), 0.0)
    known.compare(10.0, 4, {})
    before = known.setup
    known.receive_facts("a", "node0", said((PLAIN, (0, 1, 2, 3))), 10.1)
    assert known.compare(10.2, 4, {}) == (0, 3)
    assert known.compare(10.0 + limits.TICK_S, 4, {}) == ()
    after = known.setup
    assert after is not before
    known.compare(30.0, 4, {})
    assert known.setup is after


def test_a_node_that_connects_again_replaces_what_it_said():
    known = Likeness()
    known.receive_facts("a", "node0", said((PLAIN, (0, 1)), joined=(0, 1)), 0.0)
    known.lose("a")
    known.receive_facts("b", "node1", said((PLAIN, (0, 1)), joined=(0, 1)), 1.0)
    assert known.compare(10.0, 2, {}) == ()
    assert known.setup.alike[0].places == (("node1", (0, 1)),)


def test_a_rank_that_two_nodes_have_at_once_exists_twice():
    known = Likeness()
    known.receive_facts("a", "node0", said((PLAIN, (0, 1)), joined=(0, 1)), 0.0)
    known.receive_facts("b", "node1", said((PLAIN, (1,)), joined=(1,)), 1.0)
    assert known.compare(10.0, 2, {}) == (1,)
    assert known.setup.twice == {1: ("node0", "node1")}


def test_a_rank_that_never_came_to_init_is_none_of_two():
    known = Likeness()
    known.receive_facts("a", "node0", said((PLAIN, (0, 1)), joined=(0, 1)), 0.0)
    known.receive_facts("b", "node1", said((PLAIN, (1,))), 1.0)
    assert known.compare(10.0, 2, {}) == ()


def test_ranks_that_meet_on_their_own_node_are_of_two_jobs():
    known = Likeness(one_rendezvous=False)
    known.receive_facts("a", "node0", said((PLAIN, (0, 1)), joined=(0, 1)), 0.0)
    known.receive_facts("b", "node1", said((PLAIN, (0, 1)), joined=(0, 1)), 1.0)
    assert known.compare(10.0, 2, {}) == ()


def test_two_processes_of_one_node_that_are_one_rank_are_told():
    known = Likeness()
    known.receive_facts("a", "node0", said((PLAIN, (0, 1)), twice=(1,)), 0.0)
    known.compare(10.0, 2, {})
    assert known.setup.twice == {1: ("node0",)}


def test_the_parameters_of_models_that_differ_are_asked_for_once_and_of_few():
    known = Likeness()
    known.receive_facts("a", "node0", said((model("x", "y"), (0, 1, 2)), (model("x", "z"), (3,))), 0.0)
    known.compare(10.0, 4, {})
    assert known.questions() == ((("DDP", "0-3"), (0, 3)),)
    assert known.questions() == ()
    known.learn(wire.Parameters(index=0, key=("DDP", "0-3"), ranks=((0, ("a 4",)), (3, ("a 5",)))))
    known.compare(10.0, 4, {})
    assert known.setup.parameters == {("DDP", "0-3"): {0: ("a 4",), 3: ("a 5",)}}
    assert known.questions() == ()


def test_parameters_of_few_models_are_kept():
    known = Likeness()
    for number in range(99):
        known.learn(wire.Parameters(index=0, key=("DDP", str(number)), ranks=((0, ("a 4",)),)))
    known.compare(10.0, 0, {})
    assert len(known.setup.parameters) == limits.PARAMETERS_KEPT_MAX


def test_another_number_of_ranks_is_told_with_who_says_it():
    known = Likeness()
    known.receive_facts("a", "node0", said((PLAIN, (0, 1))), 0.0)
    known.note_world("node1", 6, (2, 3), 1.0)
    assert known.compare(10.0, 2, {}) == (2,)
    for size in range(99):
        known.note_world("node1", size, (2,), 1.0)
    known.compare(20.0, 2, {})
    assert len(known.setup.worlds) == limits.WORLDS_MAX


def test_clocks_of_hosts_are_compared_with_each_other():
    known = Likeness()
    for node, ahead_s in enumerate((-600.0, -600.4, -558.0)):  # the server's own may be wrong
        known.note_clock(f"node{node}", ahead_s)
        known.receive_facts(f"agent{node}", f"node{node}", said((PLAIN, (node,))), 0.0)
    assert known.compare(10.0, 3, {}) == (2,)


def test_the_timeout_is_the_shortest_that_ranks_tell_and_a_longer_habit_is_worth_a_look():
    known = Likeness()
    timed = RankFacts(values=(("backend", "nccl"), ("timeout_s", "600")))
    known.receive_facts("a", "node0", said((timed, (0, 1))), 0.0)
    kind = WaitClass(phase=Phase.CHECKPOINT, op="barrier", size=2)
    habits = {kind: Habit(waits=3, longest_s=900.0, bound_s=2700.0, timeout_s=1800.0)}
    assert known.compare(10.0, 2, habits) == (0,)
    assert known.timeout_s == 600.0


def test_what_an_agent_makes_up_is_left_out_or_cut():
    known = Likeness()
    wild = RankFacts(values=(("HOME", "/root"), ("torch", "x" * 99_999), ("shm_mb", "\u00b2"), ("timeout_s", "\u00b2")))
    known.receive_facts("a", "node0", said((wild, (0,)), (PLAIN, (1,))), 0.0)
    known.compare(10.0, 2, {})
    values = dict(known.setup.alike[0].facts.values)
    assert "HOME" not in values
    assert len(values["torch"]) == 200


def test_what_is_known_of_nodes_does_not_grow_with_agents_that_come_and_go():
    known = Likeness()
    for number in range(2000):
        known.note_clock(f"node{number}", 0.0)
        known.receive_facts(f"agent{number}", f"node{number}", said((PLAIN, (0, 1)), joined=(0, 1)), float(number))
        known.lose(f"agent{number}")
    assert len(known._nodes) <= 2
    assert len(known._clocks_s) <= 32


def test_what_ranks_have_wrapped_is_left_out_beyond_the_room_of_a_job_and_the_rest_is_kept() -> None:
    known = Likeness()

    def wrapped(rank: int, number: int) -> RankFacts:
        units = tuple(f"{number}-{unit}" for unit in range(500))
        model = ModelFacts(kind="DDP", members=f"{rank}", units=units, order="", names="", total=1)
        return RankFacts(values=PLAIN.values, models=(model,) * 15)

    for number in range(3):  # what a node said before is replaced
        alike = tuple(wire.Alike(ranks=(rank,), facts=wrapped(rank, number)) for rank in range(8))
        known.receive_facts("a", "h", wire.Facts(index=0, alike=alike), 0.0)
        assert known._weight <= limits.SETUPS_BYTES_MAX
        known.compare(10.0 * (number + 1), 8, {})
        kinds = known.setup.alike
        assert sorted(rank for each in kinds for rank in each.ranks) == list(range(8))
        assert sorted(len(each.facts.models) for each in kinds) == [0, 15, 15]
