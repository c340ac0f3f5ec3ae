"""Which action follows which hang, by a policy and by what was done before."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.model.verdict import Cause, Certainty
from ncclwatch.contract.on_hang.decision import Hang, decide
from ncclwatch.contract.on_hang.default_policy import DEFAULT_POLICY
from ncclwatch.contract.on_hang.policy import Action, Policy, default_policy, in_force, parse, text_in_force

CODE = ("rank_conditional_collective", "uneven_batches", "divergent_control_flow", "collective_order", "p2p_deadlock")
BROKEN = ("process_frozen", "node_lost", "transport")


def hang(
    cause: str = "process_frozen", certainty: str = "PROVEN", ranks: tuple[int, ...] = (3,), line: int = 44
) -> Hang:
    return Hang(cause=cause, certainty=certainty, ranks=frozenset(ranks), places=frozenset({f"train.py:{line}"}))


@pytest.mark.parametrize("cause", CODE)
def test_what_would_hang_again_is_never_restarted(cause: str) -> None:
    for certainty in Certainty:
        assert not default_policy().action(cause, certainty.value).restarts
    assert decide(default_policy(), hang(cause), 1000.0).action is Action.ABORT


@pytest.mark.parametrize("cause", sorted(set(Cause) - {*BROKEN, Cause.RANK_CRASHED, Cause.UNDETERMINED}))
def test_what_the_program_does_wrong_for_certain_is_ended(cause: Cause) -> None:
    """A proven wait of a whole job is one that its program makes: it lacks a call, or calls in another order."""
    assert decide(default_policy(), hang(cause.value), 0.0).action is Action.ABORT


@pytest.mark.parametrize("cause", BROKEN)
def test_what_has_broken_is_restarted(cause: str) -> None:
    for certainty in ("PROVEN", "STALLED"):
        assert decide(default_policy(), hang(cause, certainty), 1000.0).action.restarts


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("way", ["policy", "capture", "abort", "restart"])
def test_a_late_rank_never_does_anything(cause: Cause, way: str) -> None:
    policy = in_force(way, environ={})
    assert policy is not None
    assert decide(policy, hang(cause.value, "LATE"), 1e9).action is Action.REPORT


def test_a_capture_waits_for_nothing_and_ends_nothing() -> None:
    policy = in_force("capture", environ={})
    assert policy is not None
    for certainty in ("PROVEN", "STALLED"):
        action = decide(policy, hang(certainty=certainty), 0.0, (hang(), hang())).action
        assert action is Action.CAPTURE
        assert not action.ends
        assert not action.restarts


@pytest.mark.parametrize(("stands_s", "action"), [(119.9, Action.REPORT), (120.0, Action.RESTART)])
def test_a_hang_that_is_not_proven_may_end_by_itself_first(stands_s: float, action: Action) -> None:
    assert decide(default_policy(), hang("host_stall", "STALLED"), stands_s).action is action
    assert decide(default_policy(), hang("process_frozen", "PROVEN"), 0.0).action is Action.RESTART
    assert decide(default_policy(), hang("process_frozen", "STALLED"), stands_s - 105.0).action is action
    own = parse("[stalled]\nhost_stall = 'restart'", "here")
    assert decide(own, hang("host_stall", "STALLED"), stands_s).action is action


def test_while_a_debugger_holds_a_rank_nothing_is_ended_and_nothing_is_raised() -> None:
    """Somebody is looking at it, or takes a core of it, which takes minutes; the job goes on afterwards."""
    held = replace(hang(), traced=True)
    for way in ("policy", "abort", "restart", "raise"):
        policy = in_force(way, environ={})
        assert policy is not None
        for certainty in ("PROVEN", "STALLED"):
            found = decide(policy, replace(held, certainty=certainty), 1e9)
            assert (found.action, found.settled) == (Action.REPORT, False)
    capture = in_force("capture", environ={})
    assert capture is not None
    assert decide(capture, held, 0.0).action is Action.CAPTURE


@pytest.mark.parametrize(
    ("now", "action"),
    [
        (hang(), Action.ABORT),
        (hang(line=9), Action.ABORT),  # the same rank
        (hang(ranks=(5,)), Action.ABORT),  # the same line
        (hang(ranks=(5,), line=9), Action.RESTART),
        (hang("rank_crashed"), Action.RESTART),
    ],
)
def test_a_job_that_hangs_as_before_a_restart_is_ended(now: Hang, action: Action) -> None:
    assert decide(default_policy(), now, 1000.0, [hang()]).action is action


def test_a_job_is_restarted_as_often_as_the_policy_allows() -> None:
    policy = parse("restarts_max = 2\n[proven]\nother = 'restart'", "here")
    before = [hang(ranks=(n,), line=n) for n in range(2)]
    assert decide(policy, hang(ranks=(7,), line=7), 0.0, before[:1]).action is Action.RESTART
    last = decide(policy, hang(ranks=(7,), line=7), 0.0, before)
    assert (last.action, "2 times" in last.reason) == (Action.ABORT, True)


def test_a_job_that_has_saved_nothing_since_a_restart_is_not_started_again() -> None:
    policy = parse("[proven]\nother = 'restart'", "here")
    hangs = [replace(hang(ranks=(n,), line=n), saved=saved, attempt=n) for n, saved in enumerate((True, False, False))]
    first, second, third = hangs
    assert decide(policy, first, 0.0).action is Action.RESTART
    found = decide(policy, second, 0.0, [first])
    assert (found.action, found.reason) == (
        Action.ABORT, "it has saved nothing since it was started again, so it would begin at the same place once more",
    )  # fmt: skip
    assert decide(policy, replace(second, saved=True), 0.0, [first]).action is Action.RESTART
    # Of a job that never recorded a save nobody knows whether it saves in a way that is not seen.
    assert decide(policy, third, 0.0, [replace(first, saved=False)]).action is Action.RESTART
    more = parse("restarts_unsaved_max = 1\n[proven]\nother = 'restart'", "here")
    assert decide(more, second, 0.0, [first]).action is Action.RESTART
    assert decide(more, third, 0.0, [first, second]).action is Action.ABORT
    # Of one attempt several hangs may be told, or one by the agent and by the server.
    assert decide(more, second, 0.0, [first, replace(first, saved=False), first], 1).action is Action.RESTART
    two_a_time = [first, second, first, second]
    assert decide(replace(more, restarts_unsaved_max=2), third, 0.0, two_a_time, 2).action is Action.RESTART


def test_a_policy_that_names_no_cause_only_reports() -> None:
    empty = parse("", "here")
    assert {empty.action(cause.value, each.value) for cause in Cause for each in Certainty} == {Action.REPORT}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[proven]\nprocess_frozzen = 'restart'",
            "names process_frozzen, which is no cause; did you mean process_frozen?",
        ),
        ("[proven]\nprocess_frozen = 'reboot'", "here is not a policy for hangs"),
        ("[late]\nstraggler = 'restart'", "here is not a policy for hangs"),
        ("restarts_max = -1", "here is not a policy for hangs"),
        ("[stalled_for_s]\nnode_gone = 3", "names node_gone, which is no cause"),
        ("[stalled_for_s]\nnode_lost = 'soon'", "here is not a policy for hangs"),
        ("restarts_max =", "here is not a policy for hangs"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="ncclwatch config policy") as found:
        parse(text, "here")
    assert said in str(found.value)


def test_the_policy_is_that_of_the_flag_else_of_the_environment_else_the_default(tmp_path: Path) -> None:
    flag, named = tmp_path / "flag.toml", tmp_path / "named.toml"
    flag.write_text("restarts_max = 7")
    named.write_text("restarts_max = 8")
    environ = {config.ENV_ON_HANG: "policy", config.ENV_HANG_POLICY: str(named)}

    def restarts(policy: Policy | None) -> int:
        assert policy is not None
        return policy.restarts_max

    assert restarts(in_force("", flag, environ)) == 7
    assert restarts(in_force("restart", None, environ)) == 8
    assert restarts(in_force("policy", None, {})) == 3
    assert in_force("report", flag, environ) is None
    assert in_force("", None, {}) is None
    assert text_in_force(None, {}) == DEFAULT_POLICY
    assert text_in_force(None, environ) == "restarts_max = 8"


def test_a_way_that_is_none_and_a_file_that_is_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="NCCLWATCH_ON_HANG is 'reboot'; it may be report, capture, raise, abort, restart, policy"
    ):
        in_force("", None, {config.ENV_ON_HANG: "reboot"})
    with pytest.raises(ConfigError, match="No such file"):
        in_force("", tmp_path / "none.toml", {})
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        in_force("policy", tmp_path / "bytes.toml", {})


def test_a_policy_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    """Its last lines may be those by which nothing is ended for a while."""
    long = tmp_path / "long.toml"
    long.write_text("#" * 2**16 + "\n[stalled_for_s]\nother = 600\n")
    with pytest.raises(ConfigError, match="longer than 65536 bytes"):
        in_force("policy", long, {})


@pytest.mark.timeout(20)
def test_what_is_no_file_is_no_policy_and_is_not_waited_for(tmp_path: Path) -> None:
    """An agent reads the policies of all jobs of its node: a pipe that nobody writes must not hold it up."""
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigError, match=r"is not a file|Is a directory"):
            in_force("policy", place, {})


def test_raising_is_for_all_causes_and_no_line_of_a_policy() -> None:
    policy = in_force("raise", None, {})
    assert policy is not None
    assert policy.action("process_frozen", "PROVEN") is policy.action("host_stall", "STALLED") is Action.RAISE
    assert policy.action("straggler", "LATE") is Action.REPORT
    assert not Action.RAISE.ends
    for table in ("proven", "stalled"):
        with pytest.raises(ConfigError, match="says raise, which is for all causes or none: set NCCLWATCH_"):
            parse(f'[{table}]\nother = "raise"\n', "hangs.toml")
