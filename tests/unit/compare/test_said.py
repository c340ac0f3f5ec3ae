"""What other tools print is read as a user would read it."""

from tests.compare.said import of_detail, of_flight_recorder, of_stacks

MISMATCH = """
Collective sequence number: 50 has errors
internal record id: 49
collective: gloo:all_reduce
expected ranks: {0, 1, 2, 3}
error msg: Culprit rank 0; Error type: COLLECTIVE_TYPE_MISMATCH, Expected 'all_reduce', Culprit rank 1; Error type: X
collective stack trace:
 all_reduce at /venv/torch/distributed/distributed_c10d.py:3245
average_gradients at /home/u/averaging.py:16
main at /home/u/train.py:61
Collective sequence number: 51 has errors
internal record id: 50
error msg: Culprit rank 3; Error type: COLLECTIVE_TYPE_MISMATCH
"""
MISSING = """
Not all ranks joining collective, sequence number: 7
internal record id: 6
missing ranks: {1, 3}
collective stack trace:
 barrier at /venv/torch/distributed/distributed_c10d.py:5349
save at /home/u/train.py:30
"""
STACK = """Process 7: python train.py
Thread 7 (idle): "MainThread"
    wait (torch/distributed/distributed_c10d.py:3245)
    {function} (train.py:{line})
    main (train.py:90)
Thread 9 (idle): "Thread-1"
    work (train.py:5)
"""


def fingerprint(rank: int, op: str) -> str:
    return (
        f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber=4, OpType={op}, TensorDtypes=Float)"
    )


def raised(one: str, other: str) -> str:
    return f"[rank0]: RuntimeError: Detected mismatch between collectives on ranks. {one}, but {other}.\n"


def test_all_culprits_of_the_first_finding_are_named_with_the_innermost_line_of_the_user() -> None:
    found = of_flight_recorder(MISMATCH, ("averaging.py", "train.py"))
    assert (found.ranks, found.places) == ({0, 1}, {("averaging.py", 16)})


def test_missing_ranks_are_named_with_the_line_of_those_who_wait() -> None:
    found = of_flight_recorder(MISSING, ("train.py",))
    assert (found.ranks, found.places) == ({1, 3}, {("train.py", 30)})


def test_an_analysis_that_ends_with_an_error_has_failed_and_one_that_finds_nothing_has_not() -> None:
    assert of_flight_recorder("Traceback:\n  x\nKeyError: ('0', 3)\n", ()).failed == "KeyError: ('0', 3)"
    assert of_flight_recorder("No errors found", ()).failed == ""


def test_of_a_mismatch_whose_call_the_fewest_make_is_named() -> None:
    shape = "ALLREDUCE, TensorShape=[8]"
    text = "".join(raised(fingerprint(rank, shape), fingerprint(2, "BARRIER")) for rank in (0, 1, 3))
    assert of_detail(text).ranks == {2}
    assert of_detail(raised(fingerprint(0, shape), fingerprint(2, "ALLREDUCE, TensorShape=[9]"))).ranks == {0, 2}


def test_a_call_without_a_tensor_differs_by_its_number_if_by_nothing_else() -> None:
    calls = [
        f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber={number}OpType=BARRIER)"
        for rank, number in ((0, 160), (1, 320), (2, 160))
    ]
    assert of_detail(raised(calls[0], calls[1]) + raised(calls[2], calls[1])).ranks == {1}


def test_who_fails_to_pass_the_monitored_barrier_is_named() -> None:
    assert of_detail("Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms").ranks == {1, 3}


def test_a_rank_that_the_tool_has_crashed_is_a_failure() -> None:
    assert of_detail("Signal 11 (SIGSEGV) received by PID 8977").failed == "SIGSEGV"


def test_by_the_stacks_who_stands_where_the_fewest_stand_is_named() -> None:
    usual = STACK.format(function="step", line=44)
    stacks = {0: usual, 1: usual, 2: STACK.format(function="save", line=70)}
    found = of_stacks(stacks, ("train.py",))
    assert (found.ranks, found.places) == ({2}, {("train.py", 70)})
    assert of_stacks({0: usual, 1: usual}, ("train.py",)).ranks == frozenset()
    assert of_stacks({0: usual, 2: stacks[2]}, ("train.py",)).ranks == {0, 2}
