"""Each scenario as a server hears it: from its agents, through its own tables, watch and incidents."""

import re
from pathlib import Path

import pytest

from ncclwatch.contract.model.verdict import Cause, Severity, Verdict
from ncclwatch_server import limits
from tests.scenarios.heard import Heard, hear
from tests.scenarios.texts import each_as, read, render

MORE = 64  # ranks at work besides, and as many are asked for their views: not all are


def has_an_incident_for_each_alarm(heard: Heard) -> bool:
    alarms = {timeless(verdict) for verdict in heard.said if verdict.severity is not Severity.INFO}
    return alarms == {timeless(incident.verdict) for incident in heard.incidents}


def timeless(verdict: Verdict) -> str:
    """Return a headline without for how long a node has been silent: an incident is opened later."""
    if verdict.cause is Cause.NODE_LOST:
        return re.sub(r" for [\d.]+ s\b", "", verdict.summary)
    return verdict.summary


def claims(said: str) -> str:
    """Return who is named for what, in which sentence: counts and reasons are of all ranks of the job."""
    lines = [line for line in said.splitlines() if not line.startswith(("  |", "  first:"))]
    return re.sub(r" explains=\S+", "", "\n".join(lines))


@each_as("unheard")
def test_a_server_that_hears_the_ranks_says_the_same(path: Path):
    situation, expected = read(path)
    heard = hear(situation)
    assert render(heard.said) == expected
    assert has_an_incident_for_each_alarm(heard)


@each_as("alone")
def test_a_server_says_the_same_of_them_among_more_ranks_than_it_asks(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "INSPECT_ALL_MAX", MORE)
    monkeypatch.setattr(limits, "INSPECT_MAX", MORE)
    situation, expected = read(path)
    heard = hear(situation, MORE)
    assert claims(render(heard.said)) == claims(expected)
    assert has_an_incident_for_each_alarm(heard)
