"""What an incident's page shows of its stacks: who is blamed stands out, and nobody else."""

import re
from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, StackFrame
from ncclwatch.contract.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Divergence,
    Excerpt,
    MergedStack,
    Severity,
    Verdict,
)
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey
from ncclwatch_server.ui.incident_page import IncidentView, view_incident
from ncclwatch_server.ui.pages import incident_html
from ncclwatch_server.ui.render import PAGES


def stack(ranks: tuple[int, ...], call: str, line: int) -> MergedStack:
    frames = (
        StackFrame(function=call, file="/x/site-packages/torch/distributed/distributed_c10d.py", line=1),
        StackFrame(function="step", file="/job/train.py", line=line),
        StackFrame(function="<module>", file="/job/train.py", line=140),
    )
    return MergedStack(ranks=ranks, thread="MainThread", frames=frames)


def view(culprits: tuple[int, ...], stacks: tuple[MergedStack, ...]) -> IncidentView:
    verdict = Verdict(
        cause=Cause.COLLECTIVE_ORDER, certainty=Certainty.PROVEN, severity=Severity.CRITICAL, summary="s",
        explanation="e", advice="a", culprits=tuple(Culprit(rank=rank) for rank in culprits), victims=(),
    )  # fmt: skip
    incident = Incident(
        id="i", key=JobKey(name="job", instance="", attempt=0), job="job", world_size=16, state=IncidentState.OPEN,
        verdict=verdict, onset_to_open_s=1.0, opened_at=1e9, stacks=stacks,
    )  # fmt: skip
    return view_incident(incident, "http://h/incidents/i")


def marked(shown: IncidentView) -> list[str]:
    """Return the ranks that the page marks in its list and in its tree of stacks."""
    html = PAGES.render("parts/incident.html", view=shown, now=1e9, alone=False)
    listed = re.findall(r'<li class="blamed"><b>([^<]*)</b>', html)
    return listed + re.findall(r'class="branch blamed"><summary><span class="who">([^<]*)<', html)


OTHERS = tuple(rank for rank in range(16) if rank not in (4, 5))
# Rank 4 is alone because it waits for rank 5, which stands where all others do.
STACKS = (stack((4,), "all_reduce", 97), stack((5,), "broadcast", 120), stack(OTHERS, "broadcast", 120))


def test_the_culprit_stands_out_and_not_its_victim_that_stands_alone():
    shown = view((5,), STACKS)
    assert [(each.ranks, each.blamed) for each in shown.places] == [((5,), True), ((4,), False), (OTHERS, False)]
    assert marked(shown) == ["5"]


def test_culprits_that_stand_alone_together_stand_out_in_the_tree_too():
    assert marked(view((4, 5), STACKS)) == ["4", "5", "rank 4"]


def test_nobody_stands_out_where_nobody_is_blamed():
    assert marked(view((), STACKS)) == []


def test_source_is_shown_with_the_line_and_its_test_marked():
    site = CallSite(file="/job/train.py", line=9, function="step")
    found = view((5,), ())
    excerpt = Excerpt(site=site, lines=((2, "if rank == 5:"), (8, "<b>"), (9, "    dist.barrier()")), test_line=2)
    divergence = Divergence(
        group="dp", seq=3, culprit_op="barrier", culprit_site=site, victim_op="", victim_site=None, fact="it differs"
    )
    for parted in (None, divergence):
        verdict = replace(found.incident.verdict, excerpts=(excerpt,), first_divergence=parted)
        shown = view_incident(replace(found.incident, verdict=verdict), "http://h/incidents/i")
        html = PAGES.render("parts/incident.html", view=shown, now=1e9, alone=False)
        assert html.count('<span class="here"><b>9</b>    dist.barrier()</span>') == 1
        assert '<span class="test"><b>2</b>if rank == 5:</span><span class="gap">' in html
        assert "&lt;b&gt;" in html


@pytest.mark.parametrize(
    ("title", "shown_as"), [("group mp", "of group mp"), ("", "of group 70")], ids=["titled", "of an older version"]
)
def test_a_group_is_called_as_in_the_sentences(title: str, shown_as: str):
    found = view((5,), ()).incident
    divergence = Divergence(
        group="70", group_title=title, seq=3, culprit_op="barrier", culprit_site=None, victim_op="", victim_site=None,
        fact="it differs",
    )  # fmt: skip
    verdict = replace(found.verdict, group="70", group_title=title, op="all_reduce", seq=4, first_divergence=divergence)
    shown = view_incident(replace(found, verdict=verdict), "http://h/incidents/i")
    html = PAGES.render("parts/incident.html", view=shown, now=1e9, alone=False)
    assert f"<b>Operation</b> all_reduce #4 {shown_as}<" in html
    assert f"Operation 3 {shown_as}, 1 operations before" in html


def test_a_file_of_an_incident_loads_nothing_and_links_nowhere():
    html = incident_html(view((5,), STACKS).incident, "http://h/incidents/i", 1e9)
    assert "<script" not in html
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", html)
    assert "--paper" in html  # the style is inside


def test_what_became_of_a_hang_after_a_restart_is_on_its_page_and_links_to_the_one_that_came_back():
    hang = replace(view((5,), ()).incident, recovered_after_s=41.0, came_back_as="def456")
    shown = view_incident(hang, "http://h/incidents/i")
    html = PAGES.render("parts/incident.html", view=shown, now=1e9, alone=False)
    assert "<b>Recovered</b> after 41 s" in html
    assert "<b>Time lost</b> 41 s of 16 ranks: 0.18 rank-hours" in html
    assert '<b>Came back as</b> <a href="/incidents/def456">def456</a>' in html
    assert "started again, the job went on: recovered after 41 s" in html
    rows = PAGES.render("parts/incident_rows.html", incidents=(hang,), with_job=True, now=1e9)
    assert "recovered after 41 s; came back as def456" in rows
    unknown = (view((), ()).incident,)
    assert "came back" not in PAGES.render("parts/incident_rows.html", incidents=unknown, with_job=True, now=1e9)
