"""A list of incidents that is not complete says why, in the words it was given."""

from ncclwatch_server.incidents.pagination import Wanted
from ncclwatch_server.ui.render import PAGES


def listed(without: str) -> str:
    return PAGES.render(
        "incidents.html", incidents=(), without=without, following="", wanted=Wanted(), within="", withins=(), now=0.0,
        title="Incidents", states=(), severities=(), causes=(),
    )  # fmt: skip


def test_why_incidents_are_missing_is_a_sentence_that_leaves_names_as_they_are() -> None:
    why = "the incident store sqlite:////Data/I.db does not answer: only incidents in memory are listed"
    said = "The incident store sqlite:////Data/I.db does not answer: only incidents in memory are listed."
    assert said in listed(why)
    assert "alarm" not in listed("")
