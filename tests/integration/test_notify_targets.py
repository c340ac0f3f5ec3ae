"""Messages to real receivers on this machine: HTTP servers that fail in every way, and a mail server."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch_server.app import create_app
from ncclwatch_server.incidents.book import IncidentState
from ncclwatch_server.notify.courier import Outcome, Rhythm
from ncclwatch_server.notify.notifier import Notifier
from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.silences import Silences
from ncclwatch_server.notify.targets import read_targets
from ncclwatch_server.settings import Settings
from tests.integration.command_line import ncclwatch
from tests.integration.fake_agent import until
from tests.integration.mail_receiver import MailReceiver
from tests.integration.receiver import Receiver
from tests.ports import free_port
from tests.unit.server.incidents.test_texts import INCIDENT

pytestmark = pytest.mark.integration

QUICK = Rhythm(hold_s=0.05, pause_s=0.05, pause_s_max=0.1, send_s=5.0)
OPEN = replace(INCIDENT, stacks=(), opened_at=time.time())
OVER = replace(OPEN, state=IncidentState.RESOLVED, closed_at=time.time())
HOOK = '[[target]]\nkind = "webhook"\nname = "{name}"\nurl = "{url}/hook"\nsecret = "0123456789abcdef"\n'

COMMAND = "ncclwatch_server.notify.command"


def hook(url: str, name: str = "hook") -> str:
    """Return the lines of a webhook."""
    return HOOK.format(name=name, url=url)


def written(directory: Path, text: str) -> str:
    """Write a file of targets."""
    path = directory / "notify.toml"
    path.write_text(text)
    return str(path)


@contextmanager
def telling(directory: Path, text: str, rhythm: Rhythm = QUICK, store: str = "") -> Iterator[Notifier]:
    """Open a notifier for the targets of a file."""
    with Records(store) as records:
        silences = Silences(records.silences, records, time.time)
        with Notifier(read_targets(written(directory, text)), records, silences, rhythm=rhythm) as notifier:
            yield notifier


def outcome(notifier: Notifier, which: Outcome, target: str = "hook") -> Callable[[], int]:
    """Return what tells how often something became of a message."""
    return lambda: notifier.outcomes[target, which]


def test_each_kind_of_http_target_gets_what_its_api_wants(tmp_path: Path) -> None:
    with Receiver() as receiver:
        text = hook(receiver.url) + (
            f'[[target]]\nkind = "slack"\nurl = "{receiver.url}/slack"\n'
            f'[[target]]\nkind = "pagerduty"\nrouting_key = "R0"\nurl = "{receiver.url}/v2/enqueue"\n'
            f'[[target]]\nkind = "alertmanager"\nurl = "{receiver.url}/am/"\ntoken = "t0"\n'
        )
        with telling(tmp_path, text) as notifier:
            notifier.hear(OPEN, step=3)
            until(lambda: len(receiver.taken) == 4)
            notifier.hear(OVER)
            until(lambda: len(receiver.taken) == 8)
    by_path = {path: [r for r in receiver.taken if r.path == path] for path in {r.path for r in receiver.taken}}
    assert set(by_path) == {"/hook", "/slack", "/v2/enqueue", "/am/api/v2/alerts"}
    assert all(len(received) == 2 for received in by_path.values())
    assert [r.json["event_action"] for r in by_path["/v2/enqueue"]] == ["trigger", "resolve"]
    assert by_path["/am/api/v2/alerts"][0].headers["authorization"] == "Bearer t0"
    assert "blocks" in by_path["/slack"][0].json
    assert all(r.headers["content-type"] == "application/json" for r in receiver.taken)


def test_errors_of_a_server_are_tried_again_until_it_takes_the_message(tmp_path: Path) -> None:
    with Receiver() as receiver, telling(tmp_path, hook(receiver.url)) as notifier:
        receiver.manners.statuses = [500, 503, 429, 408]
        notifier.hear(OPEN)
        until(lambda: receiver.taken)
        assert len(receiver.all) == 5
        assert len({received.headers["webhook-id"] for received in receiver.all}) == 1
        until(lambda: notifier.outcomes["hook", Outcome.DELIVERED] == 1)
        assert notifier.outcomes["hook", Outcome.RETRIED] == 4


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_what_a_server_refuses_is_not_tried_again(tmp_path: Path, status: int) -> None:
    with Receiver() as receiver, telling(tmp_path, hook(receiver.url)) as notifier:
        receiver.manners.statuses = [status]
        notifier.hear(OPEN)
        until(outcome(notifier, Outcome.REFUSED))
        assert len(receiver.all) == 1


def test_a_redirect_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Receiver() as inside, Receiver() as receiver, telling(tmp_path, hook(receiver.url)) as notifier:
        receiver.manners.statuses = [307]
        receiver.manners.headers = {"Location": f"{inside.url}/secret"}
        notifier.hear(OPEN)
        until(outcome(notifier, Outcome.REFUSED))
        assert not inside.all
    assert "a redirect, which is not followed" in caplog.text


def test_a_target_that_refuses_connections_gets_the_message_when_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    with telling(tmp_path, hook(f"http://127.0.0.1:{port}")) as notifier:
        notifier.hear(OPEN)
        until(outcome(notifier, Outcome.RETRIED))
        with Receiver(port) as receiver:
            until(lambda: receiver.events == ["firing"])


def test_a_stuck_target_delays_no_other_and_is_tried_again(tmp_path: Path) -> None:
    with Receiver() as stuck, Receiver() as receiver:
        stuck.manners.silent = True
        text = hook(stuck.url, "stuck") + hook(receiver.url)
        with telling(tmp_path, text, replace(QUICK, send_s=0.5)) as notifier:
            began = time.monotonic()
            notifier.hear(OPEN)
            handed_over_s = time.monotonic() - began
            until(lambda: receiver.events == ["firing"])
            until(outcome(notifier, Outcome.RETRIED, "stuck"))
            stuck.manners.silent = False
            until(lambda: stuck.events == ["firing"])
            assert handed_over_s < 0.5
    assert len(stuck.all) >= 2


def test_no_secret_comes_into_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), Receiver() as receiver:
        receiver.manners.statuses = [500, 404]
        text = f'[[target]]\nkind = "slack"\nurl = "{receiver.url}/services/T0/B0/SECRET"\n'
        with telling(tmp_path, text) as notifier:
            notifier.hear(OPEN)
            until(outcome(notifier, Outcome.REFUSED, "slack"))
    lines = [r.getMessage() for r in caplog.records if r.name != "asyncio" and r.levelno > logging.DEBUG]
    assert lines
    assert not [line for line in lines if "SECRET" in line]


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'incidents.db'}"
    with Receiver() as receiver:
        with telling(tmp_path, hook(receiver.url), store=store) as notifier:
            notifier.hear(OPEN)
            until(outcome(notifier, Outcome.DELIVERED))
        with telling(tmp_path, hook(receiver.url), store=store) as notifier:
            notifier.recall((OPEN,))
            notifier.hear(OPEN)
            notifier.hear(OVER)
            until(lambda: receiver.events == ["firing", "resolved"])
        with telling(tmp_path, hook(receiver.url), store=store) as notifier:
            notifier.recall((OVER,))
            notifier.hear(replace(OPEN, id="next"))
            until(lambda: len(receiver.taken) == 3)
    assert receiver.events == ["firing", "resolved", "firing"]


def test_what_the_end_of_a_server_finds_under_way_is_still_told(tmp_path: Path) -> None:
    with Receiver() as receiver:
        with telling(tmp_path, hook(receiver.url), Rhythm(hold_s=60.0)) as notifier:
            notifier.hear(OPEN)
            until(lambda: receiver.taken)
            notifier.hear(OVER)
        assert receiver.events == ["firing", "resolved"]


def test_a_server_ends_although_a_target_is_stuck(tmp_path: Path) -> None:
    with Receiver() as stuck:
        stuck.manners.silent = True
        with telling(tmp_path, hook(stuck.url), Rhythm()) as notifier:
            notifier.hear(OPEN)
            until(lambda: stuck.all)
            began = time.monotonic()
        assert time.monotonic() - began < 8.0  # a grace of one second; Rhythm() would wait for ten


def test_an_answer_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    with Receiver() as receiver, telling(tmp_path, hook(receiver.url)) as notifier:
        receiver.manners.statuses = [400]
        receiver.manners.body = b"x" * 50_000_000
        notifier.hear(OPEN)
        until(outcome(notifier, Outcome.REFUSED))


MAIL = """
[[target]]
kind = "email"
name = "hook"
server = "127.0.0.1:{port}"
tls = "none"
from = "w@example.com"
to = ["a@example.com", "b@example.com"]
"""


def test_mails_of_one_incident_are_a_thread_and_go_to_all(tmp_path: Path) -> None:
    with MailReceiver() as receiver, telling(tmp_path, MAIL.format(port=receiver.port)) as notifier:
        notifier.hear(OPEN)
        until(lambda: receiver.mails)
        notifier.hear(OVER)
        until(lambda: len(receiver.mails) == 2)
    first, last = receiver.mails
    assert receiver.recipients == [["a@example.com", "b@example.com"]] * 2
    assert first["Subject"] == "[ncclwatch] CRITICAL job job: rank 1 left the loop"
    assert last["Subject"].startswith("[ncclwatch] RESOLVED, the job goes on")
    assert first["References"] == last["References"] == "<abc123@ncclwatch>"
    assert first["Message-ID"] != last["Message-ID"]
    assert "Give all ranks the same number of batches." in first.get_content()


def test_a_mail_that_a_server_cannot_take_now_is_tried_again_and_one_that_it_refuses_is_not(tmp_path: Path) -> None:
    with MailReceiver() as receiver, telling(tmp_path, MAIL.format(port=receiver.port)) as notifier:
        receiver.answers = ["451 later", "554 never"]
        notifier.hear(OPEN)
        until(outcome(notifier, Outcome.REFUSED))
        assert notifier.outcomes["hook", Outcome.RETRIED] == 1
        assert not receiver.mails


def test_a_mail_server_without_tls_gets_nothing_where_tls_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with MailReceiver() as receiver:
        text = MAIL.format(port=receiver.port).replace('"none"', '"starttls"')
        with telling(tmp_path, text) as notifier:
            notifier.hear(OPEN)
            until(outcome(notifier, Outcome.RETRIED))
        assert not receiver.mails
    assert "STARTTLS" in caplog.text


def test_everything_else_goes_through_apprise(tmp_path: Path) -> None:
    with Receiver() as receiver:
        text = f'[[target]]\nkind = "apprise"\nname = "hook"\nurl = "json://127.0.0.1:{receiver.port}/notify"\n'
        with telling(tmp_path, text) as notifier:
            receiver.manners.statuses = [500]
            notifier.hear(OPEN)
            until(outcome(notifier, Outcome.DELIVERED))
            assert notifier.outcomes["hook", Outcome.RETRIED] == 1
    (taken,) = receiver.taken
    assert taken.json["title"] == "CRITICAL job job: rank 1 left the loop"
    assert "Give all ranks the same number of batches." in taken.json["message"]


def test_the_test_command_says_how_each_target_took_it(tmp_path: Path) -> None:
    with Receiver() as good, Receiver() as bad:
        bad.manners.statuses = [404]
        path = written(tmp_path, hook(good.url, "good") + hook(bad.url, "bad"))
        both = ncclwatch("test", module=COMMAND, NCCLWATCH_NOTIFY=path)
        assert both.returncode == 1, both.stderr
        first, second = both.stdout.splitlines()
        assert first.startswith("good (webhook): delivered in ")
        assert second == "bad (webhook): not delivered: HTTP 404, 'ok'"
        assert good.events == ["firing", "resolved"]
        assert all(received.json["notification"]["test"] for received in good.taken)
        one = ncclwatch("test", "--notify", path, "--target", "good", module=COMMAND)
        assert (one.returncode, len(good.taken)) == (0, 4)
    none = ncclwatch("test", module=COMMAND)
    assert none.returncode == 2
    assert "NCCLWATCH_NOTIFY" in none.stderr


def test_a_server_whose_targets_cannot_be_used_does_not_start(tmp_path: Path) -> None:
    targets = read_targets(written(tmp_path, '[[target]]\nkind = "apprise"\nurl = "nonsense://x"\n'))
    with pytest.raises(ConfigError, match="target 'apprise': Apprise does not know such a URL"):
        create_app(Settings(), targets=targets)
