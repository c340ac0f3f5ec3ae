"""The file of targets: what can be said, and what is told when it is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.model.verdict import Severity
from ncclwatch_server.notify.targets import (
    Alertmanager,
    Apprise,
    Mail,
    PagerDuty,
    Slack,
    Targets,
    Webhook,
    mail_server,
    read_targets,
    signing_key,
)
from tests.unit.server.incidents.test_texts import INCIDENT

WHOLE = """
link = "https://watch.example.com/"

[[target]]
kind = "webhook"
url = "https://hooks.example.com/x"
secret = { file = "SECRET" }
jobs = ["prod-*", "eval"]
severity = "warning"

[[target]]
kind = "slack"
name = "oncall"
url = { env = "SLACK" }

[[target]]
kind = "pagerduty"
routing_key = "R0"

[[target]]
kind = "alertmanager"
url = "http://am:9093"

[[target]]
kind = "email"
server = "mail.example.com"
from = "ncclwatch@example.com"
to = ["oncall@example.com"]

[[target]]
kind = "apprise"
url = "json://localhost"
"""
HOOK = 'kind = "webhook"\nurl = "http://h/x"\nsecret = "0123456789abcdef"\n'


def read(directory: Path, text: str, **environ: str) -> Targets:
    """Write a file and read it."""
    path = directory / "notify.toml"
    path.write_text(text)
    return read_targets(str(path), environ)


def test_each_kind_of_target_can_be_named_and_secrets_stand_elsewhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    found = read(tmp_path, WHOLE.replace("SECRET", str(secret)), SLACK="https://hooks.slack.com/services/T/B/x")
    assert [type(target) for target in found.target] == [Webhook, Slack, PagerDuty, Alertmanager, Mail, Apprise]
    assert [t.name for t in found.target] == ["webhook", "oncall", "pagerduty", "alertmanager", "email", "apprise"]
    webhook, slack = found.target[:2]
    assert isinstance(webhook, Webhook) and webhook.secret == "0123456789abcdef"
    assert isinstance(slack, Slack) and slack.url == "https://hooks.slack.com/services/T/B/x"
    assert found.link == "https://watch.example.com"


def test_without_a_file_there_are_no_targets_and_the_flag_goes_before_the_environment(tmp_path: Path) -> None:
    assert read_targets("", {}) == Targets()
    one, two = tmp_path / "1.toml", tmp_path / "2.toml"
    one.write_text('link = "http://one"')
    two.write_text('link = "http://two"')
    assert read_targets("", {"NCCLWATCH_NOTIFY": str(two)}).link == "http://two"
    assert read_targets(str(one), {"NCCLWATCH_NOTIFY": str(two)}).link == "http://one"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "does not name targets of alerts"),
        ('[[target]]\nkind = "pager"', "Invalid value 'pager'"),
        ('[[target]]\nkind = "slack"', "missing required field `url`"),
        (f'[[target]]\n{HOOK}sevrity = "warning"', "unknown field `sevrity`"),
        (f'[[target]]\n{HOOK}severity = "info"', "Invalid enum value 'info'"),
        (f"[[target]]\n{HOOK}[[target]]\n{HOOK}", "two targets 'webhook'"),
        ('[[target]]\nkind = "slack"\nurl = "file:///etc/passwd"', "target 'slack', url is no URL"),
        ('[[target]]\nkind = "slack"\nurl = "http://h/a b"', "is no URL"),
        ('[[target]]\nkind = "slack"\nurl = "https://"', "is no URL"),
        ('[[target]]\nkind = "slack"\nurl = {env = "NONE"}', "the variable NONE is not set"),
        ('[[target]]\nkind = "slack"\nurl = {file = "/nonexistent"}', "cannot read /nonexistent"),
        ('[[target]]\nkind = "slack"\nurl = {}', "say either file or env"),
        ('[[target]]\nkind = "webhook"\nurl = "http://h"\nsecret = "short"', "shorter than 16 bytes"),
        ('[[target]]\nkind = "webhook"\nurl = "http://h"\nsecret = "whsec_***"', "not base64"),
        ('[[target]]\nkind = "pagerduty"\nrouting_key = ""', "routing_key is empty"),
        ('[[target]]\nkind = "email"\nserver = "h"\nfrom = "a@b"\nto = []', "want mail addresses"),
        ('[[target]]\nkind = "email"\nserver = ":25"\nfrom = "a@b"\nto = ["c@d"]', "no mail server"),
        (
            '[[target]]\nkind = "email"\nserver = "h"\nfrom = "a@b"\nto = ["c@d"]\ntls = "none"\nusername = "u"\n'
            'password = "p"',
            "travel in the clear",
        ),
        ('link = "javascript:alert(1)"', "link is no URL"),
        ("".join(f'[[target]]\n{HOOK}name = "{i}"\n' for i in range(33)), "33 targets; 32 are possible"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        read(tmp_path, text)
    assert "notify.toml" in str(raised.value)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*--notify"):
        read_targets(str(tmp_path / "none.toml"), {})


def test_an_address_that_is_a_secret_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, '[[target]]\nkind = "slack"\nurl = "hxxps://hooks.slack.com/services/SECRET"')
    assert "SECRET" not in str(raised.value)


def test_warnings_go_only_where_asked_and_info_nowhere() -> None:
    quiet, curious = Slack(url="http://h"), Slack(url="http://h", severity="warning")  # type: ignore[arg-type]
    for severity, expected in (
        (Severity.CRITICAL, (True, True)), (Severity.WARNING, (False, True)), (Severity.INFO, (False, False)),
    ):  # fmt: skip
        incident = replace(INCIDENT, verdict=replace(INCIDENT.verdict, severity=severity))
        assert (quiet.wants(incident), curious.wants(incident)) == expected


def test_targets_can_be_for_some_jobs_only() -> None:
    target = Slack(url="http://h", jobs=("prod-*",))
    assert target.wants(replace(INCIDENT, job="prod-7"))
    assert not target.wants(replace(INCIDENT, job="Prod-7"))
    assert not target.wants(INCIDENT)


def test_targets_can_be_for_jobs_of_some_users_and_with_some_labels_only() -> None:
    owned = replace(INCIDENT, user="alice", labels="team=vision,urgent")
    for wanted, found in (
        ({"users": ("ali*",)}, True),
        ({"users": ("bob",)}, False),
        ({"labels": ("team=vision", "urgent")}, True),
        ({"labels": ("team=text",)}, False),
        ({"users": ("alice",), "labels": ("team=vis*",), "jobs": ("nope",)}, False),
    ):
        assert Slack(url="http://h", **wanted).wants(owned) is found, wanted  # type: ignore[arg-type]
    assert not Slack(url="http://h", labels=("team",)).wants(INCIDENT)


def test_a_mail_server_has_the_port_of_its_kind() -> None:
    common = 'from = "a@b"\nto = ["c@d"]'
    for server, tls, expected in (
        ("h", "starttls", ("h", 587)), ("h", "tls", ("h", 465)), ("h", "none", ("h", 25)), ("h:26", "tls", ("h", 26)),
        ("[::1]:26", "none", ("::1", 26)),
    ):  # fmt: skip
        import msgspec

        text = f'[[target]]\nkind = "email"\nserver = "{server}"\ntls = "{tls}"\n{common}'
        (target,) = msgspec.toml.decode(text, type=Targets).target
        assert isinstance(target, Mail)
        assert mail_server(target) == expected


def test_a_secret_may_be_text_or_base64() -> None:
    assert signing_key("0123456789abcdef") == b"0123456789abcdef"
    assert signing_key("whsec_MDEyMzQ1Njc4OWFiY2RlZg==") == b"0123456789abcdef"
