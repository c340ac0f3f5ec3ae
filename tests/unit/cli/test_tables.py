"""What people see of jobs and stacks: compressed, complete, and without anything a terminal would act upon."""

import io

import msgspec
import pytest
from rich.console import Console, RenderableType

from ncclwatch.cli.client.answers import HostRanks, Incident, Job, JobStacks, Node, Standing, Unseen
from ncclwatch.cli.commands.incidents import Page
from ncclwatch.cli.commands.incidents import render as render_incidents
from ncclwatch.cli.commands.stacks import render as render_stacks
from ncclwatch.cli.commands.status import render as render_status
from ncclwatch.cli.commands.top import RATE_OVER_S, Rates
from ncclwatch.cli.output.job_table import missing_ranks, shortened
from ncclwatch.cli.output.terminal import local_time
from ncclwatch.contract.model.rank import StackFrame
from ncclwatch.contract.model.verdict import MergedStack

HOSTILE = "evil\x1b]0;title\x07\x1b[31m[bold red]markup[/]\u202e:skull:"
HARMLESS = r"evil\x1b]0;title\x07\x1b[31m[bold red]markup[/]\u202e:skull:"


def shown(parts: "list[RenderableType]", width: int = 120) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def job(**changes: object) -> Job:
    nodes = tuple(Node(host=f"node{n:03}", ranks=tuple(range(8 * n, 8 * n + 8))) for n in range(4))
    known: dict[str, object] = {"id": "a", "state": "running", "world_size": 32, "ranks_seen": 32, "nodes": nodes}
    return Job(**(known | changes))  # type: ignore[arg-type]


def test_hosts_of_a_job_are_compressed():
    assert "a    running  32/32  node[000-003]  0      -" in shown(render_status((job(),), ()))


def test_ranks_and_nodes_nobody_hears_of_are_told_and_not_of_a_job_that_is_over():
    nodes = (Node(host="n0", ranks=(0, 1), quiet_s=9.0), Node(host="n1", ranks=(2, 3), connected=False))
    half = job(world_size=5, nodes=nodes)
    assert missing_ranks(half) == "2-4"
    text = shown(render_status((half,), ()))
    assert "a: no node speaks for ranks 2-4 of 0-4" in text
    assert "a: n0 (ranks 0-1) has been silent for 9.0 s" in text
    assert missing_ranks(job(world_size=5, nodes=nodes, state="ended")) == ""
    assert "silent" not in shown(render_status((job(world_size=5, nodes=nodes, state="ended"),), ()))


@pytest.mark.parametrize(("quiet_s", "told"), [(5.0, False), (5.1, True)])
def test_a_node_is_silent_after_five_seconds(quiet_s: float, told: bool):
    nodes = (Node(host="n0", ranks=(0,), quiet_s=quiet_s),)
    assert ("silent" in shown(render_status((job(world_size=1, nodes=nodes),), ()))) is told


def test_nothing_that_ranks_choose_reaches_the_terminal_as_anything_but_text():
    hostile = job(id=HOSTILE, waiting=(HOSTILE,), notices=(HOSTILE,), nodes=(Node(host=HOSTILE, ranks=(0,)),))
    incident = Incident(
        id="i", job=HOSTILE, state="open", cause="c", certainty="PROVEN", severity="critical", summary=HOSTILE
    )
    stack = MergedStack(
        ranks=(0,), thread=HOSTILE, frames=(StackFrame(function=HOSTILE, file=f"/u/{HOSTILE}.py", line=1),)
    )
    found = JobStacks(
        job=HOSTILE, world_size=1, asked=(0,), chosen="all ranks", hosts=(HostRanks(host=HOSTILE, ranks=(0,)),),
        places=(Standing(ranks=(0,), words=HOSTILE),), stacks=(stack,), tree=(HOSTILE,),
        unseen=(Unseen(ranks=(1,), why=HOSTILE),), notes=(HOSTILE,),
    )  # fmt: skip
    for text in (
        shown(render_status((hostile,), (incident,)), 400),
        shown(list(render_stacks(found, merged=True)), 400),
        shown(list(render_stacks(found, merged=False)), 400),
    ):
        assert text.replace("\n", "").isprintable()
        assert HARMLESS in text


def test_the_merged_tree_takes_the_place_of_main_threads_and_keeps_what_is_in_no_tree():
    frames = (StackFrame(function="f", file="/u/a.py", line=1),)
    stacks = tuple(
        MergedStack(ranks=(0,), thread=thread, frames=frames)
        for thread in ("MainThread", "saver", "MainThread with native frames", "main of child process 7")
    )
    found = JobStacks(job="a", world_size=1, asked=(0,), chosen="as named", stacks=stacks, tree=("0  f (u/a.py:1)",))
    merged, plain = (shown(list(render_stacks(found, merged=merged))) for merged in (True, False))
    assert "thread MainThread:" not in merged
    assert "0  f (u/a.py:1)" in merged
    assert "0  f (u/a.py:1)" not in plain
    for thread in ("MainThread with native frames:", "main of child process 7:"):
        assert thread in merged
        assert thread in plain
    assert "thread MainThread:" in plain


def test_a_long_list_is_cut_between_its_parts():
    assert shortened("0-2,4-7", 7) == "0-2,4-7"
    assert shortened("0-2,4-7,9", 7) == "0-2,..."
    assert shortened("node[000-003]", 6) == "node[0,..."


def test_steps_per_second_are_those_of_the_last_seconds():
    rates = Rates()
    assert rates.see((job(steps=100),), 0.0) == {}
    assert rates.see((job(steps=110),), 2.0) == {"a": 5.0}
    for second in range(3, 40):
        found = rates.see((job(steps=110),), float(second))
    assert found == {"a": 0.0}, f"what was more than {RATE_OVER_S} s ago counts no more"
    assert rates.see((job(steps=3, attempt=1),), 40.0) == {}, "another attempt counts anew"
    assert rates.see((job(steps=2, attempt=1),), 41.0) == {}, "a counter that went back says nothing"
    assert rates.see((job(steps=9, attempt=1, state="ended"),), 42.0) == {}


def test_a_moment_is_shown_in_the_readers_time_and_nonsense_as_it_is():
    assert local_time("2026-11-21T10:00:00+00:00").startswith("2026-11-2")
    assert local_time("no time") == "no time"


def test_the_sentence_of_an_incident_has_lines_of_its_own_on_a_narrow_terminal():
    listed = {
        "id": "0123456789ab", "job": "team-a/a-name-of-a-job-that-is-long", "state": "open", "severity": "critical",
        "cause": "host_stall", "certainty": "STALLED", "opened_at": "2026-11-21T10:00:00+00:00",
        "summary": "rank 1 has made no progress at train.py:44 for 5.0 s.",
    }  # fmt: skip
    found = Page(schema=1, incidents=(msgspec.Raw(msgspec.json.encode(listed)),), next=None)
    text = shown(list(render_incidents(found)), 80)
    assert "  host_stall, STALLED: rank 1 has made no progress at train.py:44 for 5.0 s." in text.splitlines()


def test_what_became_of_a_hang_after_a_restart_is_listed_and_one_that_came_back_is_marked_in_the_status():
    listed = {
        "id": "a", "job": "j", "state": "ended", "severity": "critical", "cause": "host_stall", "certainty": "STALLED",
        "opened_at": "2026-11-21T10:00:00+00:00", "summary": "s", "recovered_after_s": 41.0, "came_back_as": "b",
        "lost_s": 360.0, "world_size": 8, "gpus": 8,
    }  # fmt: skip
    found = Page(schema=1, incidents=(msgspec.Raw(msgspec.json.encode(listed)),), next=None)
    told = "  recovered after 41 s; came back as b; lost 6 min of 8 ranks: 0.8 GPU-hours"
    assert told in shown(list(render_incidents(found))).splitlines()
    again = msgspec.convert(listed | {"id": "b", "state": "open", "came_back_from": "a"}, Incident)
    assert "j: s (came back, was a)" in shown(render_status((), (again,)))
