"""What alerts say, and that nothing a rank sends can mention, link, format or add a header."""

import json
from dataclasses import replace

import msgspec
import pytest

from ncclwatch.contract.model.rank import CallSite, StackFrame
from ncclwatch.contract.model.verdict import Certainty, Culprit, Evidence, MergedStack, Severity
from ncclwatch_server.incidents.book import Incident, IncidentState
from ncclwatch_server.incidents.report import report_incident
from ncclwatch_server.notify import alertmanager, mail, pagerduty, slack, webhook
from ncclwatch_server.notify.message import Message, burnt_hours, clean, cost, cut
from ncclwatch_server.notify.other import unmentioning
from ncclwatch_server.notify.stages import Stage
from ncclwatch_server.notify.webhook import BODY_BYTES_MAX
from tests.unit.server.incidents.test_texts import INCIDENT

AT = INCIDENT.opened_at + 600 - INCIDENT.onset_to_open_s
EVIL = (
    "<!channel> <@U123> <https://evil.example|here> *b* `c` & \x1b[31mred\x1b[0m \u202egnp.exe\r\nBcc: x@evil.example"
    " @everyone :skull: \x00 \ud800"
)


def message(incident: Incident = INCIDENT, stage: Stage = Stage.FIRING, **changes: object) -> Message:
    """Return a message about an incident, ten minutes after the onset."""
    made = Message(id="abc123-1-1", stage=stage, incident=incident, at=AT, step=41, base="https://w.example")
    return replace(made, **changes)  # type: ignore[arg-type]


def hostile(text: str = EVIL, more: int = 1) -> Incident:
    """Return an incident of which a rank has written everything that it can write."""
    text = text * more
    site = CallSite(file=text, line=1, function=text)
    culprit = Culprit(rank=1, host=text, device=text, call_site=site, doing=text)
    frames = (StackFrame(function=text, file=f"/home/{text}.py", line=3),) * 3
    verdict = replace(
        INCIDENT.verdict, summary=text, explanation=text, advice=text, culprits=(culprit,) * 20, group=text, op=text,
        victims=tuple(range(0, 4000, 2)), evidence=(Evidence(source=text, rank=0, fact=text),) * 200,
    )  # fmt: skip
    stacks = tuple(MergedStack(ranks=(rank,), thread="MainThread", frames=frames) for rank in range(30))
    return replace(INCIDENT, job=text, verdict=verdict, stacks=stacks)


def test_a_message_says_who_where_why_what_to_do_and_what_it_costs() -> None:
    said = dict(message().facts)
    assert message().title == "CRITICAL job job: rank 1 left the loop"
    assert said["culprit"] == (
        "rank 1, host node7, pid 4242, cuda:1, at /home/me/train.py:12 in train(): waiting in barrier"
    )
    assert said["do"] == "Give all ranks the same number of batches."
    assert said["in"] == "all_reduce number 7 of group 0, step 41"
    assert said["waiting"] == "ranks 0,2-3"
    assert said["cost"] == "4 ranks x 10 min = 0.667 GPU-hours so far, 4 more each hour"
    assert said["page"] == "https://w.example/incidents/abc123"
    assert said["silence"] == "ncclwatch silence add job --for 2h"
    assert "train.py:12" in message().tree


def test_hours_count_from_the_onset_until_the_end() -> None:
    assert burnt_hours(INCIDENT, AT) == pytest.approx(4 * 600 / 3600)
    over = replace(INCIDENT, state=IncidentState.RESOLVED, closed_at=AT)
    assert burnt_hours(over, AT + 9000) == pytest.approx(4 * 600 / 3600)
    assert cost(over, AT + 9000) == "4 ranks x 10 min = 0.667 GPU-hours"
    big = replace(INCIDENT, world_size=16_384)
    assert cost(big, AT) == "16384 ranks x 10 min = 2,731 GPU-hours so far, 16384 more each hour"


def test_ranks_on_processors_burn_no_gpus_and_what_does_not_stop_the_job_costs_nothing() -> None:
    cpu = replace(INCIDENT.verdict, culprits=(Culprit(rank=1, device="cpu"),))
    assert "rank-hours" in cost(replace(INCIDENT, verdict=cpu), AT)
    for change in ({"severity": Severity.WARNING}, {"predicted": True}, {"certainty": Certainty.LATE}):
        assert cost(replace(INCIDENT, verdict=replace(INCIDENT.verdict, **change)), AT) == ""


def test_the_end_is_told_as_what_it_is() -> None:
    went_on = replace(INCIDENT, state=IncidentState.RESOLVED, closed_at=AT)
    assert message(went_on, Stage.RESOLVED).title.startswith("RESOLVED, the job goes on. job job: rank 1 left")
    ended = replace(went_on, state=IncidentState.ENDED)
    assert message(ended, Stage.RESOLVED).title.startswith("OVER, the job has ended. ")
    assert "silence" not in dict(message(ended, Stage.RESOLVED).facts)


def texts(value: object) -> list[str]:
    """Return all strings in a JSON value."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in texts(part)]


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("more", [1, 400])
def test_slack_gets_nothing_that_mentions_links_or_formats(stage: Stage, more: int) -> None:
    body = json.loads(slack.body_of(message(hostile(more=more), stage)))
    assert len(body["blocks"]) <= 50
    for block in body["blocks"]:
        text = block.get("text", {})
        assert len(text.get("text", "")) <= (150 if block["type"] == "header" else 3000)
        if text.get("type") == "mrkdwn":
            assert text["text"] == "<https://w.example/incidents/abc123|Open incident>"
    assert body["unfurl_links"] is body["unfurl_media"] is False
    assert "<" not in body["text"] and "&lt;!channel&gt;" in body["text"]
    ours = "<https://w.example/incidents/abc123|Open incident>"
    for text in texts(body):
        assert "://" not in text.replace(ours, "")
        assert all(c.isprintable() or c in "\n\u200b" for c in text)
        assert "\u202e" not in text
    assert len(json.dumps(body)) < 30_000


def test_a_link_in_slack_is_there_only_where_the_server_knows_its_own_address() -> None:
    assert b"mrkdwn" not in slack.body_of(message(base=""))
    assert b"Open incident" in slack.body_of(message())


@pytest.mark.parametrize("more", [1, 400])
def test_pagerduty_gets_one_key_for_an_incident_and_keeps_its_limits(more: int) -> None:
    bodies = [json.loads(pagerduty.body_of(message(hostile(more=more), stage), "key")) for stage in Stage]
    assert [body["event_action"] for body in bodies] == ["trigger", "trigger", "resolve"]
    assert {body["dedup_key"] for body in bodies} == {"ncclwatch-abc123"}
    assert {body["routing_key"] for body in bodies} == {"key"}
    for body in bodies:
        assert len(body.get("payload", {}).get("summary", "")) <= 1024
        assert len(json.dumps(body)) < 50_000
        assert all(c.isprintable() or c == "\n" for text in texts(body) for c in text)
    assert bodies[0]["payload"]["severity"] == "critical"


def test_alertmanager_gets_labels_that_never_change_and_an_end() -> None:
    later = replace(INCIDENT, verdict=replace(INCIDENT.verdict, certainty=Certainty.STALLED, summary="other"))
    (first,) = json.loads(alertmanager.body_of(message()))
    (second,) = json.loads(alertmanager.body_of(message(later, Stage.UPDATED)))
    (over,) = json.loads(alertmanager.body_of(message(later, Stage.RESOLVED)))
    assert first["labels"] == second["labels"] == over["labels"]
    assert first["labels"] == {
        "alertname": "NcclwatchIncident", "severity": "critical", "job_id": "job", "incident_id": "abc123",
    }  # fmt: skip
    owned = replace(INCIDENT, job="team-a/run", user="alice", labels="cost-centre=7,urgent")
    (routed,) = json.loads(alertmanager.body_of(message(owned)))
    assert routed["labels"].items() >= {
        "job_namespace": "team-a", "job_user": "alice", "job_label_cost_centre": "7",
    }.items()  # fmt: skip
    assert first["endsAt"] > second["startsAt"]
    assert over["endsAt"] == over["startsAt"][:11] + over["endsAt"][11:]
    assert over["endsAt"] < first["endsAt"]
    (evil,) = json.loads(alertmanager.body_of(message(hostile(more=400))))
    assert len(evil["labels"]["job_id"]) <= 200
    assert len(json.dumps(evil)) < 50_000


def test_mail_cannot_be_given_headers() -> None:
    made = mail.compose(message(hostile(more=50)), "from@example.com", ("a@example.com", "b@example.com"))
    raw = bytes(made)
    assert made["Bcc"] is None
    assert b"\nBcc:" not in raw
    assert len(str(made["Subject"])) <= 200
    assert made["To"] == "a@example.com, b@example.com"
    assert made["Message-ID"] == "<abc123-1-1@ncclwatch>"
    assert all(c.isprintable() or c == "\n" for c in made.get_content())


def test_no_service_behind_apprise_is_made_to_mention_anybody() -> None:
    said = mail.text_of(message(hostile()), unmentioning)
    assert "@everyone" not in said and "<!channel>" not in said and "<@" not in said
    assert [line for line in said.splitlines() if "://" in line] == ["page       https://w.example/incidents/abc123"]


def test_the_webhook_gets_the_report_of_the_design() -> None:
    body = json.loads(webhook.body_of(message()))
    assert (body["schema"], body["job"], body["world_size"]) == (1, "job", 4)
    assert body["incidents"] == [json.loads(msgspec.json.encode(report_incident(INCIDENT)))]
    assert body["notification"] == {
        "id": "abc123-1-1", "event": "firing", "at": "2027-01-15T08:09:58.250+00:00", "gpu_hours": 0.666667, "step": 41,
        "link": "https://w.example/incidents/abc123", "test": False, "shortened": False,
    }  # fmt: skip


def test_a_webhook_is_signed_as_the_examples_of_its_specification() -> None:
    key = webhook.signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = webhook.sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("text", [EVIL, EVIL.replace("\ud800", "")])
def test_a_webhook_has_a_bound_and_says_that_something_is_left_out(text: str) -> None:
    body = webhook.body_of(message(hostile(text, more=3000)))
    assert len(body) <= BODY_BYTES_MAX
    assert json.loads(body)["notification"]["shortened"] is True
    assert json.loads(body)["incidents"][0]["summary"].startswith("<!channel>")


def test_texts_are_cleaned_and_cut() -> None:
    assert clean("a\x1b[31m\tb\r\n\u202ec\x00\u200b\ud800", 99) == r"a\x1b[31m b \u202ec\x00\u200b\ud800"
    assert clean("  0-3   f (x.py:1)", 99, spaces=True) == "  0-3   f (x.py:1)"
    assert cut("abcdefgh", 8) == "abcdefgh"
    assert cut("abcdefghi", 8) == "abcd ..."
