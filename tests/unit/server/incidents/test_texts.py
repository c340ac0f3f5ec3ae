"""The two renderings of an incident: the block for people and the JSON for machines."""

from dataclasses import replace

import msgspec

from ncclwatch.contract.model.rank import CallSite, StackFrame
from ncclwatch.contract.model.verdict import Culprit, Divergence, Evidence, MergedStack, Repair, RepairCall, Verdict
from ncclwatch.contract.words.text import rank_list
from ncclwatch_server.incidents.book import Incident, IncidentState
from ncclwatch_server.incidents.report import IncidentReport, report_incident, report_job, revive
from ncclwatch_server.incidents.terminal_text import BRIEF_LINES, brief, plain, render
from tests.unit.server.server_values import KEY, VERDICT

HERE = CallSite(file="/home/me/train.py", line=12, function="train")
FULL = replace(
    VERDICT,
    explanation="Rank 1 had 47 batches, the others 48. " * 5,
    culprits=(Culprit(rank=1, host="node7", pid=4242, device="cuda:1", call_site=HERE, doing="waiting in barrier"),),
    first_divergence=Divergence(
        group="0", seq=6, culprit_op="barrier", culprit_site=HERE, victim_op="all_reduce", victim_site=None,
        fact="one rank left its loop",
    ),
    repairs=(Repair(rank=1, change="leave out", made=(RepairCall(op="barrier", group="0", site=HERE),), peers=3),),
    evidence=(Evidence(source="ring", rank=0, fact="in all_reduce for 3 s"),),
)  # fmt: skip
INCIDENT = Incident(
    id="abc123",
    key=KEY,
    job="job",
    world_size=4,
    state=IncidentState.OPEN,
    verdict=FULL,
    onset_to_open_s=2.25,
    opened_at=1_800_000_000.5,
    stacks=(
        MergedStack(
            ranks=(0, 2, 3),
            thread="MainThread",
            frames=(
                StackFrame(function="all_reduce", file="/v/site-packages/torch/distributed/c.py", line=9),
                StackFrame(function="train", file="/home/me/train.py", line=12),
            ),
        ),
    ),
)

EXPECTED = """\
ncclwatch: CRITICAL rank 1 left the loop
  why       Rank 1 had 47 batches, the others 48. Rank 1 had 47 batches, the others 48. Rank 1 had
            47 batches, the others 48. Rank 1 had 47 batches, the others 48. Rank 1 had 47 batches,
            the others 48.
  do        Give all ranks the same number of batches.
  culprit   rank 1, host node7, pid 4242, cuda:1, at /home/me/train.py:12 in train(): waiting in
            barrier
  waiting   ranks 0,2-3
  diverged  number 6 of group 0: one rank left its loop
            culprit: barrier at /home/me/train.py:12 in train()
            others: all_reduce at an unknown line
  certainty PROVEN; reported 2.2 s after the wait began
  evidence  rank 0: in all_reduce for 3 s (ring)
  stack     ranks 0,2-3, thread MainThread, innermost first:
              all_reduce (torch/distributed/c.py:9)
            > train (/home/me/train.py:12)
  incident  abc123 of job job
  cause     uneven_batches: `ncclwatch explain uneven-batches`
"""


BRIEF = [
    *EXPECTED.splitlines()[: EXPECTED.splitlines().index("  waiting   ranks 0,2-3")],
    "  certainty PROVEN; reported 2.2 s after the wait began",
    "  more      ncclwatch report abc123",
]


def test_the_block_reads_as_designed() -> None:
    assert render(INCIDENT) == EXPECTED


def test_the_brief_block_has_ten_lines_at_most() -> None:
    assert brief(INCIDENT) == BRIEF
    many = replace(
        FULL,
        explanation=" ".join(f"Sentence {n} of the explanation is of some length." for n in range(30)),
        advice="Do this first. " + "Then do that as well, wherever it is needed. " * 20,
        culprits=FULL.culprits * 3,
    )
    for width in (60, 100, 160):
        lines = brief(replace(INCIDENT, verdict=many), width)
        assert len(lines) <= BRIEF_LINES
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).split())
        assert "Do this first." in text and "Sentence 0" in text
        assert "and 2 more ranks" in text


def test_a_culprit_is_shown_with_its_line_unless_the_headline_has_that_very_line() -> None:
    for headline, shown in (("rank 1 called barrier at train.py:12; x", False), ("rank 1 is at train.py:120", True)):
        text = " ".join(brief(replace(INCIDENT, verdict=replace(FULL, summary=headline)), 160))
        assert ("at /home/me/train.py:12 in train()" in text) == shown


def test_a_fix_comes_before_a_reason_where_there_is_room_for_one() -> None:
    long = replace(FULL, summary="rank 1 " + "did something long " * 20, explanation="Because. " * 90)
    assert "Give all ranks" in "\n".join(brief(replace(INCIDENT, verdict=long)))


VALIDATING = MergedStack(
    ranks=(1,), thread="MainThread", frames=(StackFrame(function="validate", file="/home/me/train.py", line=88),)
)


def test_who_stands_where_is_one_line_the_odd_ones_first() -> None:
    told = render(replace(INCIDENT, stacks=(*INCIDENT.stacks, VALIDATING)))
    assert "  where     rank 1 in validate train.py:88; ranks 0,2-3 in train train.py:12\n" in told


def test_the_report_tells_machines_the_same_and_the_merged_tree() -> None:
    report = report_incident(replace(INCIDENT, stacks=(*INCIDENT.stacks, VALIDATING)))
    assert report.where == "1 in validate train.py:88; 0,2-3 in train train.py:12"
    assert report.stack_tree == (
        "1      validate (me/train.py:88)",
        "0,2-3  train (me/train.py:12)",
        "       all_reduce (torch/distributed/c.py:9)",
    )


def test_a_report_stored_before_places_were_told_is_still_read() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(report_incident(INCIDENT)))
    del stored["where"], stored["stack_tree"]
    assert msgspec.convert(stored, IncidentReport).where == ""


def test_of_many_places_eight_are_shown() -> None:
    many = tuple(
        replace(VALIDATING, ranks=(rank,), frames=(StackFrame(function="f", file="/home/me/a.py", line=rank),))
        for rank in range(10)
    )
    assert "and 2 more places" in " ".join(render(replace(INCIDENT, stacks=many)).split())


def test_the_block_never_carries_what_a_rank_sent_to_a_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\nncclwatch: all is well\u202e\u2026\u00e9\x00"
    site = CallSite(file=evil, line=1, function=evil)
    verdict = Verdict(
        cause=FULL.cause, certainty=FULL.certainty, severity=FULL.severity, summary=evil, explanation=evil,
        advice=evil, victims=(0,), op=evil, group=evil,
        culprits=(Culprit(rank=1, host=evil, device=evil, call_site=site, doing=evil),),
        first_divergence=replace(FULL.first_divergence, fact=evil, culprit_op=evil, culprit_site=site),
        evidence=(Evidence(source=evil, rank=0, fact=evil),),
    )  # fmt: skip
    stack = MergedStack(ranks=(0,), thread=evil, frames=(StackFrame(function=evil, file=evil, line=1),))
    text = render(replace(INCIDENT, verdict=verdict, stacks=(stack,), job=evil, unseen=((1, evil),)))
    assert all(c == "\n" or c.isprintable() for c in text)
    assert sum(line.startswith("ncclwatch:") for line in text.splitlines()) == 1
    assert max(map(len, text.splitlines())) <= 100


def test_no_line_is_wider_than_a_terminal_and_long_stacks_are_cut() -> None:
    deep = StackFrame(function="f" * 200, file="/v/site-packages/torch/" + "x" * 300, line=1)
    user = StackFrame(function="train", file="/home/me/train.py", line=1)
    stack = MergedStack(ranks=tuple(range(0, 400, 2)), thread="MainThread", frames=(deep,) * 40 + (user,))
    text = render(replace(INCIDENT, stacks=(stack,) * 20))
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("> train (/home/me/train.py:1)") == 8
    assert "... 28 more" in text
    assert "and 12 more stacks" in text


def test_ranks_are_compressed_to_ranges() -> None:
    assert rank_list((5, 0, 1, 2)) == "0-2,5"
    assert rank_list(()) == ""


def test_typography_becomes_ascii() -> None:
    assert plain("a \u2013 b\u2026 \u201cc\u201d\n\td") == 'a - b... "c" d'


def test_a_report_survives_the_store() -> None:
    report = report_incident(INCIDENT)
    decoded = msgspec.json.decode(msgspec.json.encode(report), type=IncidentReport)
    assert decoded == report
    assert report_incident(revive(decoded, KEY, 4)) == report
    assert revive(decoded, KEY, 4).key == KEY


def test_the_report_of_a_job_lists_the_oldest_incident_first() -> None:
    later = replace(INCIDENT, id="later", opened_at=INCIDENT.opened_at + 1)
    report = report_job("job", 4, [later, INCIDENT])
    assert [incident.id for incident in report.incidents] == ["abc123", "later"]
    assert report.incidents[0].opened_at == "2027-01-15T08:00:00.500+00:00"


def test_a_wait_of_unknown_length_is_still_json() -> None:
    assert report_incident(replace(INCIDENT, onset_to_open_s=float("inf"))).onset_to_open_s == 0.0


def test_a_stack_that_was_refused_is_a_fact() -> None:
    report = report_incident(replace(INCIDENT, unseen=((2, "ptrace is refused"),)))
    assert report.evidence[-1] == Evidence(source="py-spy", rank=2, fact="ptrace is refused")
    assert "rank 2: no stack: ptrace is refused" in render(replace(INCIDENT, unseen=((2, "ptrace is refused"),)))


def test_a_divergence_at_the_hang_itself_is_not_said_twice() -> None:
    verdict = INCIDENT.verdict
    assert verdict.first_divergence is not None
    at_the_hang = replace(verdict, first_divergence=replace(verdict.first_divergence, seq=verdict.seq))
    assert "diverged" in render(INCIDENT)
    assert "diverged" not in render(replace(INCIDENT, verdict=at_the_hang))


def test_one_fact_of_many_ranks_is_one_line() -> None:
    facts = tuple(Evidence(source="ring", rank=rank, fact="in all_reduce for 3 s") for rank in (0, 1, 3))
    told = render(replace(INCIDENT, verdict=replace(INCIDENT.verdict, evidence=facts)))
    assert "ranks 0-1,3: in all_reduce for 3 s (ring)" in told


def test_what_became_of_a_hang_after_a_restart_is_told_and_kept() -> None:
    after = replace(INCIDENT, recovered_after_s=41.2, came_back_as="def456")
    assert "  restart   recovered after 41 s; came back as def456\n  incident  abc123" in render(after)
    report = report_incident(after)
    assert (report.recovered_after_s, report.came_back_as, report.came_back_from) == (41.2, "def456", "")
    assert revive(report, KEY, 4).recovered_after_s == 41.2
    assert report_incident(INCIDENT).recovered_after_s is None
    later = revive(report_incident(replace(INCIDENT, came_back_from="aaa")), KEY, 4)
    assert (later.recovered_after_s, later.came_back_as, later.came_back_from) == (None, "", "aaa")


def test_what_a_hang_has_cost_is_told_when_it_is_over() -> None:
    over = replace(INCIDENT, state=IncidentState.ENDED, closed_at=INCIDENT.opened_at + 357.75, gpus=4)
    assert "  lost      6 min of 4 ranks: 0.4 GPU-hours\n" in render(over)
    assert "  lost " not in render(INCIDENT)
    report = report_incident(over)
    assert (report.world_size, report.gpus, report.lost_s, report.end_seen) == (4, 4, 360.0, True)
    assert report_incident(INCIDENT).lost_s is None
    unseen = revive(report_incident(replace(over, end_seen=False)), KEY, 4)
    assert (unseen.gpus, unseen.end_seen, report_incident(unseen).lost_s) == (4, False, None)
