"""`ncclwatch config show`: every setting, its value, and where it came from."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ncclwatch.cli.main import main
from ncclwatch.cli.settings_in_force import HIDDEN, Setting, in_force, variables
from ncclwatch.contract import config


def one(name: str, **environ: str) -> Setting:
    return next(setting for setting in in_force(environ).settings if setting.name == name)


def test_every_variable_of_ncclwatch_is_shown_with_what_it_means():
    shown = {setting.name: setting.meaning for setting in in_force({}).settings}
    assert set(shown) == variables()
    assert not [name for name, meaning in shown.items() if not meaning], "add it to settings_in_force"


def test_what_is_set_is_told_apart_from_defaults():
    assert (one("NCCLWATCH_AGENT").value, one("NCCLWATCH_AGENT").origin) == ("1", "default")
    found = one("NCCLWATCH_AGENT", NCCLWATCH_AGENT="0")
    assert (found.value, found.origin, found.is_set) == ("0", "environment", True)


@pytest.mark.parametrize(
    ("environ", "value", "origin"),
    [
        ({}, "http://127.0.0.1:8470", "default"),
        ({"MASTER_ADDR": "head"}, "http://head:8470", "MASTER_ADDR, port 8470"),
        ({"MASTER_ADDR": "head", "NCCLWATCH_SERVER": "http://x:1"}, "http://x:1", "environment"),
        ({"NCCLWATCH_SERVER": "https://me:secret@x:1/a"}, "https://x:1/a", "environment"),
    ],
)
def test_the_server_says_who_named_it(environ: dict[str, str], value: str, origin: str):
    found = one(config.ENV_SERVER, **environ)
    assert (found.value, found.origin) == (value, origin)


@pytest.mark.parametrize(
    ("environ", "value", "origin"),
    [
        ({}, "localhost-0", "default"),
        ({"NCCLWATCH_JOB": "mine"}, "mine", "environment"),
        ({"SLURM_JOB_ID": "17"}, "slurm-17.0", "SLURM_JOB_ID"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "head"}, "head-0", "MASTER_ADDR"),
        ({"TORCHELASTIC_RUN_ID": "run7", "MASTER_ADDR": "head"}, "run7", "TORCHELASTIC_RUN_ID"),
    ],
)
def test_the_job_says_what_its_name_came_from(environ: dict[str, str], value: str, origin: str):
    found = one(config.ENV_JOB, **environ)
    assert (found.value, found.origin) == (value, origin)


def test_secrets_are_never_shown(tmp_path: Path):
    secret = "s3cr3t-of-the-cluster"
    file = tmp_path / "token"
    file.write_text(secret)
    for environ in ({"NCCLWATCH_TOKEN": secret}, {"NCCLWATCH_TOKEN_FILE": str(file)}):
        for form in ("--json", "--text"):
            said = CliRunner(env=environ).invoke(main, ["config", "show", form]).output
            assert HIDDEN in said
            assert secret not in said
    assert one("NCCLWATCH_TOKEN", NCCLWATCH_TOKEN_FILE=str(file)).origin == f"file {file}"
    assert one("NCCLWATCH_TOKEN").value == ""


def test_a_misspelt_variable_and_a_file_that_cannot_be_read_are_told(tmp_path: Path):
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for environ, told in (
        ({"NCCLWATCH_SERVR": "x"}, "NCCLWATCH_SERVR is set and nothing reads it; did you mean NCCLWATCH_SERVER?"),
        ({"NCCLWATCH_TOKEN_FILE": "/nowhere"}, "cannot be read (No such file or directory); correct it"),
        ({"NCCLWATCH_TOKEN_FILE": str(empty)}, "which is empty; write the secret into it"),
    ):
        (problem,) = in_force(environ).problems
        assert told in problem
    assert in_force({"NCCLWATCH_JOB": "x", "OTHER": "y"}).problems == ()


def test_a_password_in_the_url_of_the_server_is_not_shown_and_told_to_be_of_no_use():
    found = in_force({"NCCLWATCH_SERVER": "https://admin:hunter2@head:8470"})
    assert "hunter2" not in repr(found) and "admin" not in repr(found)
    assert "NCCLWATCH_TOKEN" in found.problems[0]
    (server,) = [each for each in found.settings if each.name == "NCCLWATCH_SERVER"]
    assert server.value == "https://head:8470"


def test_machines_get_json():
    said = json.loads(CliRunner(env={"NCCLWATCH_AGENT": "0"}).invoke(main, ["config", "show"]).stdout)
    assert said["schema"] == 1
    (agent,) = [each for each in said["settings"] if each["name"] == "NCCLWATCH_AGENT"]
    assert agent == {
        "name": "NCCLWATCH_AGENT", "value": "0", "origin": "environment", "is_set": True,
        "meaning": "0: ranks start no agent",
    }  # fmt: skip


def test_a_policy_or_a_hook_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    policy, script = tmp_path / "hangs.toml", tmp_path / "on-hang"
    environ = {"NCCLWATCH_HANG_POLICY": str(policy)}
    assert any("cannot read the policy for hangs" in each for each in in_force(environ).problems)
    policy.write_text(f"hook = '{script}'\n")
    (problem,) = in_force(environ).problems
    assert problem == (
        f"NCCLWATCH_HANG_POLICY: the hook of the policy cannot be run here: {script}: No such file or directory"
    )
    checked = CliRunner().invoke(main, ["config", "policy", str(policy)])
    assert (checked.exit_code, checked.stdout) == (0, f"hook = '{script}'\n")
    assert checked.stderr.startswith("ncclwatch: warning: the hook cannot be run on this host: ")
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert in_force(environ).problems == ()
    policy.write_text("hook = 'on-hang'\n")
    assert 'hook is "on-hang"; it has to be an absolute path' in in_force(environ).problems[0]
