"""What a policy may name as a hook, what a hook reads, and how often it is run."""

import json
from pathlib import Path

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Culprit
from ncclwatch.contract.on_hang import hook
from ncclwatch.contract.on_hang.hook import Budget, HookCall, HookIncident
from ncclwatch.contract.on_hang.policy import default_policy, in_force, parse, stated


def call(summary: str = "rank 1 is stopped", culprits: int = 1, host: str = "node1") -> HookCall:
    site = CallSite(file="/a/train.py", line=44, function="main")
    found = tuple(
        Culprit(rank=rank, host=host, pid=7, device="cuda:1", call_site=site, doing="d" * 5000)
        for rank in range(culprits)
    )
    return HookCall(
        action="restart_elsewhere", reason="the policy says so", job="team/llama", attempt=1, host="node0",
        capture="node0:/c.zip", culprits_total=culprits,
        incident=HookIncident(
            id="1a", job="team/llama", cause="node_lost", certainty="PROVEN", summary=summary, advice="replace it",
            culprits=found, one_of=False, opened_at="2026-11-20T10:00:00Z", world_size=8,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "command", "timeout_s"),
    [
        ("", (), 30.0),
        ("hook = ''", (), 30.0),
        ("hook = '/site/on hang'", ("/site/on hang",), 30.0),
        ("hook = ['/site/on-hang', '--drain']\nhook_timeout_s = 2.5", ("/site/on-hang", "--drain"), 2.5),
    ],
)
def test_a_policy_names_one_executable_with_its_arguments(
    text: str, command: tuple[str, ...], timeout_s: float
) -> None:
    found = parse(text, "here")
    assert (found.hook, found.hook_timeout_s) == (command, timeout_s)
    assert default_policy().hook == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hook = 'on-hang'", 'here: hook is "on-hang"; it has to be an absolute path, such as "/site/bin/on-hang"'),
        ("hook = ['./on-hang']", "absolute"),
        ("hook = '~/on-hang'", "absolute"),
        ('hook = "/a\\u0000b"', "zero byte"),
        ("hook = 7", "not a policy for hangs"),
        ("hook = '/a'\nhook_timeout_s = 0", "not a policy for hangs"),
        ("hook = '/a'\nhook_timeout_s = 601", "not a policy for hangs"),
    ],
)
def test_a_hook_that_is_no_absolute_path_is_an_error_of_the_policy(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text, "here")


@pytest.mark.parametrize("way", ["capture", "raise", "abort", "restart", "policy"])
def test_a_hook_goes_with_every_action_but_report(tmp_path: Path, way: str) -> None:
    file = tmp_path / "hangs.toml"
    file.write_text("hook = '/site/on-hang'")
    found = in_force(way, file, {})
    assert found is not None
    assert found.hook == ("/site/on-hang",)
    assert in_force("report", file, {}) is None


def test_a_policy_with_a_hook_that_every_user_may_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hangs.toml"
    file.write_text("hook = '/site/on-hang'")
    file.chmod(0o664)
    assert stated(file).hook
    file.chmod(0o666)
    with pytest.raises(ConfigError, match=f"chmod o-w {file}"):
        in_force("policy", file, {})
    file.write_text("restarts_max = 2")
    assert stated(file).restarts_max == 2


def test_why_a_hook_cannot_be_run_is_said_with_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "on-hang"
    assert hook.problem((str(script),)) == f"{script}: No such file or directory"
    with_arguments = f"{script} --now"
    assert hook.problem((with_arguments,)).endswith(f'arguments go into a list: hook = ["{script}", "--now"]')
    assert hook.problem((str(tmp_path),)) == f"{tmp_path} is not a file"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o644)
    assert hook.problem((str(script),)) == f"{script} is not executable: chmod +x {script}"
    script.chmod(0o777)
    assert hook.problem((str(script),)) == f"{script} may be written by every user: chmod o-w {script}"
    script.chmod(0o755)
    assert hook.problem((str(script), "--now")) == ""


def test_a_hook_reads_one_object_with_the_names_of_a_report() -> None:
    found = json.loads(hook.encode(call()))
    assert (found["schema"], found["action"], found["job"], found["attempt"]) == (
        1,
        "restart_elsewhere",
        "team/llama",
        1,
    )
    assert (found["capture"], found["host"], found["culprits_total"]) == ("node0:/c.zip", "node0", 1)
    incident = found["incident"]
    assert (incident["id"], incident["cause"], incident["certainty"]) == ("1a", "node_lost", "PROVEN")
    assert (incident["severity"], incident["summary"]) == ("critical", "rank 1 is stopped")
    (culprit,) = incident["culprits"]
    assert (culprit["rank"], culprit["host"], culprit["device"]) == (0, "node1", "cuda:1")
    assert culprit["call_site"] == {"file": "/a/train.py", "line": 44, "function": "main"}


def test_what_a_hook_reads_is_bounded_and_holds_no_line_but_its_own() -> None:
    data = hook.encode(call(summary="a\nb\x1b[2J" * 10_000, culprits=5000, host="node1\nnode2"))
    assert len(data) < 64 * 1024
    assert data.endswith(b"\n") and data.count(b"\n") == 1
    found = json.loads(data)
    assert found["culprits_total"] == 5000
    assert len(found["incident"]["culprits"]) == hook.CULPRITS_MAX
    assert found["incident"]["culprits"][0]["host"] == "node1 node2"
    assert found["incident"]["summary"].startswith("a b\\x1b[2Ja b")


def test_a_hook_is_not_watched_and_knows_its_job() -> None:
    environ = hook.environment({"PATH": "/bin", "NCCLWATCH_JOB": "of the agent"}, call())
    assert environ == {"PATH": "/bin", "NCCLWATCH_JOB": "team/llama", "NCCLWATCH_DISABLE": "1"}


def test_hooks_are_run_so_often_for_an_attempt_and_within_an_hour() -> None:
    now = [0.0]
    budget = Budget(lambda: now[0])
    assert budget.refusal(hook.PER_ATTEMPT_MAX - 1) == ""
    assert "10 times for this attempt" in budget.refusal(hook.PER_ATTEMPT_MAX)
    for _ in range(hook.HOURLY_MAX - 1):
        assert budget.refusal(0) == ""
    assert "20 times here within an hour" in budget.refusal(0)
    now[0] = hook.HOUR_S
    assert budget.refusal(0) == ""
