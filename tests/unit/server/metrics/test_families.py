"""What /metrics says: of small jobs everything, of 16,384 ranks no more, and never a label of Prometheus' own."""

import asyncio
import random
import re
import shutil
import subprocess
import threading
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as older_families

from ncclwatch.contract import wire
from ncclwatch.contract.groups import name_key
from ncclwatch.contract.model.verdict import Cause, Culprit, Severity
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import IncidentBook, IncidentState, JobKey, Opening
from ncclwatch_server.jobs.registry import Jobs
from ncclwatch_server.judge import judge
from ncclwatch_server.metrics import PerRank, Scrapes, Wanted, moment
from ncclwatch_server.metrics.families import SUSPECTS_MAX, TEXT_MAX, Families
from ncclwatch_server.metrics.per_rank import escaped
from ncclwatch_server.metrics.summary import GROUPS_SHOWN_MAX, RankState, Spread, group_name
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.job.faults import Fault, FaultKind, drawn
from ncclwatch_server.simulation.job.layout import Axis, Layout
from ncclwatch_server.simulation.job.program import Training, courses
from ncclwatch_server.simulation.run import cruising, run
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.counters import RefusedAt
from ncclwatch_server.watch.tick import Watch
from tests.unit.server.server_values import VERDICT, digest

WALL = 1_800_000_000.0
SHORT = Training(microbatches=1, layers=1)
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
TARGET_LABELS = {"job", "instance", "pod", "namespace", "container", "node", "service", "endpoint", "cluster"}


def watching(*, now: float = 100.0) -> Watch:
    """Return a watch whose clocks stand."""
    return Watch(judge, IncidentBook(), NoStore(), clock=lambda: now, wall=lambda: WALL)


def announced(watch: Watch, *, job: str = "llm", world_size: int = 4, node: int = 4, now: float = 90.0) -> Jobs:
    """Let all nodes of a job announce themselves, the first by connection number 0."""
    for number, first in enumerate(range(0, world_size, node)):
        link = Link(number=number, agent=f"a{number}", host=f"host{number}", version="1")
        said = wire.Announce(
            index=0, job=job, instance="x", attempt=2, world_size=world_size,
            ranks=tuple(range(first, first + node)), terminal=False,
        )  # fmt: skip
        watch.jobs.announce(link, said, now)
    watch.agents = -(-world_size // node)
    return watch.jobs


def big(watch: Watch, fleet: Fleet, *, now: float = 95.0) -> None:
    """Let a simulated job report twice, five seconds apart."""
    size, node = fleet.still.world_size, fleet.still.layout.node
    state = announced(watch, world_size=size, node=node).listed()[0].state
    axes = len(fleet.still.layout.axes)
    for at in (now - 5, now):
        ranks, groups = fleet.rows(at - (now - 6))
        for number in range(fleet.nodes):
            mine, theirs = (
                slice(number * node, (number + 1) * node),
                slice(number * node * axes, (number + 1) * node * axes),
            )
            state.receive_digest(number, memoryview(ranks[mine].tobytes()), memoryview(groups[theirs].tobytes()), at)
        state.fold(at)


def series(watch: Watch, *, suspects: bool = True, now: float = 100.0) -> dict[str, float]:
    """Return all series of a moment by their text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(moment.take(watch, NoStore(), now, WALL), suspects=suspects))
    lines = generate_latest(registry).decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def page(watch: Watch, wanted: Wanted) -> str:
    """Return an answer as text."""
    return asyncio.run(Scrapes(watch, NoStore(), lambda: 100.0, lambda: WALL).page(wanted)).body.decode()


def opened(watch: Watch, culprits: int = 1, **changes: object) -> str:
    """Open an incident of the job. Returns its id."""
    (job,) = watch.jobs.listed()
    said = replace(VERDICT, culprits=tuple(Culprit(rank=rank) for rank in range(1, culprits + 1)), **changes)
    incident = watch.book.open(Opening(key=job.key, job=job.id, world_size=job.world_size, verdict=said), WALL)
    assert incident is not None
    watch.counters.count_opened(incident)
    return incident.id


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    """Sixty-four ranks in more groups than are told one by one; one of them left a collective out."""
    layout = Layout.parse("tp=4,pp=2,dp=8")
    fault = drawn(FaultKind.SKIP, layout, courses(layout, SHORT, 3), 1, random.Random(1))
    return Fleet(run(layout, SHORT, [fault], steps=3))


def test_each_rank_is_in_one_state_and_the_states_add_up_to_the_world() -> None:
    watch = watching()
    (job,) = announced(watch, world_size=6, node=2).listed()
    digest(job.state, 0, 91.0, {0: 0.0, 1: 8.0}, detached=(0,))
    digest(job.state, 1, 91.0, {2: 0.0, 3: 0.0}, ended=(3,))
    job.state.fold(91.0)
    job.state.seen[5] = False
    job.suspicion = replace(job.suspicion, unheard=frozenset({2}))
    found = series(watch)
    states = {state: found[f'ncclwatch_ranks{{job_id="llm",state="{state.name.lower()}"}}'] for state in RankState}
    assert states == {
        RankState.RUNNING: 1, RankState.DETACHED: 1, RankState.WAITING: 1, RankState.ENDED: 1, RankState.UNSEEN: 1,
        RankState.DISK_WAIT: 0, RankState.STOPPED: 0, RankState.SILENT: 1,
    }  # fmt: skip


def test_a_job_has_its_namespace_user_and_labels_in_one_series() -> None:
    watch = watching()
    for number, (job, user, labels) in enumerate(
        (("team-a/run", "alice", "team=vision,cost-centre=7"), ("plain", "bob", "team=text,cost_centre=8"))
    ):
        said = wire.Announce(
            index=0, job=job, instance="x", attempt=0, world_size=1, ranks=(0,), terminal=False, user=user,
            labels=labels,
        )  # fmt: skip
        watch.jobs.announce(Link(number=number, agent=f"a{number}", host="h", version="1"), said, 90.0)
    found = {name for name in series(watch) if name.startswith("ncclwatch_job_info")}
    assert found == {
        'ncclwatch_job_info{job_id="team-a/run",job_label_cost_centre="7",job_label_team="vision",'
        'job_name="team-a/run",job_namespace="team-a",job_user="alice"}',
        'ncclwatch_job_info{job_id="plain",job_label_cost_centre="",job_label_team="text",'
        'job_name="plain",job_namespace="",job_user="bob"}',
    }


def test_progress_is_told_as_the_time_at_which_it_was_made() -> None:
    watch = watching()
    (job,) = announced(watch).listed()
    for now, count in ((90.0, 5), (93.0, 9), (96.0, 9)):
        digest(job.state, 0, now, dict.fromkeys(range(4), 0.0), enqueued=count)
        job.state.fold(now)
    found = series(watch)
    assert found['ncclwatch_job_last_progress_timestamp_seconds{job_id="llm"}'] == WALL - 7
    assert found['ncclwatch_job_collectives_completed_total{job_id="llm"}'] == 4 * (9 - 5)
    assert found['ncclwatch_job_attempt{job_id="llm"}'] == 2
    assert found["ncclwatch_digest_age_seconds"] == 4


def test_a_hang_shows_in_waits_lags_groups_and_suspects(fleet: Fleet) -> None:
    watch = watching()
    big(watch, fleet)
    incident = opened(watch)
    found = series(watch)
    assert found['ncclwatch_ranks{job_id="llm",state="waiting"}'] == 64
    assert found['ncclwatch_job_rank_wait_seconds_bucket{job_id="llm",le="1.0"}'] == 0
    assert found['ncclwatch_job_rank_wait_seconds_bucket{job_id="llm",le="10.0"}'] == 64
    assert found['ncclwatch_job_hung{job_id="llm"}'] == 1
    assert found['ncclwatch_job_sequence_lag{job_id="llm"}'] >= 1
    assert found['ncclwatch_job_rank_lag_collectives_bucket{job_id="llm",le="0.0"}'] < 64
    labels = f'cause="uneven_batches",host="host0",incident_id="{incident}",job_id="llm",rank="1",severity="critical"'
    assert found[f"ncclwatch_suspect_rank_info{{{labels}}}"] == 1
    assert 'ncclwatch_process_group_sequence_lag{first_rank="0",job_id="llm",process_group="0"}' in found
    shown = [name for name in found if name.startswith("ncclwatch_process_group_sequence_lag{")]
    assert 1 < len(shown) <= GROUPS_SHOWN_MAX < found['ncclwatch_process_groups{job_id="llm"}']


def test_while_nothing_is_wrong_only_the_default_group_of_many_is_told(fleet: Fleet) -> None:
    watch = watching()
    big(watch, fleet)
    shown = [name for name in series(watch) if name.startswith("ncclwatch_process_group_sequence_lag{")]
    assert shown == ['ncclwatch_process_group_sequence_lag{first_rank="0",job_id="llm",process_group="0"}']


def test_groups_of_one_name_are_told_by_the_first_of_their_ranks_and_not_mixed() -> None:
    layout = Layout.parse("tp=2,pp=2,dp=2,names=own")
    at = [step.axis for step in courses(layout, SHORT, 3)[1].steps].index(Axis.TENSOR)
    fault = Fault(kind=FaultKind.STUCK, rank=5, at=at)
    watch = watching()
    big(watch, Fleet(run(layout, SHORT, [fault], steps=3)))
    found = series(watch)
    name = str(layout.axes.index(Axis.TENSOR))
    series_of = 'ncclwatch_process_group_sequence_lag{{first_rank="{}",job_id="llm",process_group="{}"}}'
    assert [found[series_of.format(first, name)] for first in (0, 2, 4, 6)] == [0, 0, 1, 0]
    assert found['ncclwatch_process_groups{job_id="llm"}'] == sum(map(len, layout.members.values()))
    assert found['ncclwatch_job_sequence_lag{job_id="llm"}'] == 1


def test_suspects_are_bounded_and_those_of_critical_incidents_come_first() -> None:
    watch = watching()
    (job,) = announced(watch, world_size=64, node=8).listed()
    opened(watch, culprits=40, severity=Severity.WARNING, cause=Cause.DUPLICATE_DEVICE, seq=3)
    opened(watch, culprits=3)
    told = [name for name in series(watch) if name.startswith("ncclwatch_suspect_rank_info")]
    assert len(told) == SUSPECTS_MAX
    assert sum('severity="critical"' in name for name in told) == 3
    assert not [name for name in series(watch, suspects=False) if "rank=" in name]
    job.release()
    watch.book.close(job.key, watch.book.open_of(job.key)[0].state.ENDED, WALL)
    ended = series(watch)
    assert not [name for name in ended if name.startswith(("ncclwatch_suspect", "ncclwatch_incident_open{"))]
    assert ended['ncclwatch_job_state{job_id="llm",state="ended"}'] == 1
    assert ended['ncclwatch_job_hung{job_id="llm"}'] == 0


def test_an_open_incident_has_its_sentence_its_line_and_the_first_of_its_advice() -> None:
    watch = watching()
    announced(watch)
    opened(watch, summary='rank 1 "left"\nthe loop' + "!" * 1000, advice="Drop the last batch. Then look again.")
    (told,) = [name for name in series(watch) if name.startswith("ncclwatch_incident_info")]
    assert f'summary="rank 1 \\"left\\"\\nthe loop{"!" * (TEXT_MAX - 22)}"' in told
    assert 'advice="Drop the last batch."' in told
    assert 'line=""' in told


def test_sixteen_thousand_ranks_fit_into_a_page_that_does_not_grow_with_them() -> None:
    sizes = {}
    for layout in ("tp=8,dp=8", "tp=8,pp=8,dp=256,ep=8"):
        watch = watching()
        big(watch, Fleet(cruising(Layout.parse(layout), SHORT, steps=2, at_step=1)))
        opened(watch, culprits=16)
        sizes[layout] = len(page(watch, Wanted()))
    small, large = sizes.values()
    assert large < 60_000
    assert large < small * 1.5
    assert page(watch, Wanted(per_rank=PerRank.ALL)).count("\nncclwatch_rank_state{") == 16_384


def test_all_but_taking_hold_of_the_tables_is_done_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, seen = watching(), []
    announced(watch)
    collect = Families.collect

    def noted(self: Families):
        seen.append(threading.current_thread() is threading.main_thread())
        return collect(self)

    monkeypatch.setattr(Families, "collect", noted)
    page(watch, Wanted())
    assert seen == [False]


def test_those_who_ask_within_a_second_get_one_answer_and_all_ranks_are_never_kept() -> None:
    watch, now = watching(), [100.0]
    announced(watch)
    scrapes = Scrapes(watch, NoStore(), lambda: now[0], lambda: WALL)

    async def ask(*wanted: Wanted) -> list[object]:
        return await asyncio.gather(*(scrapes.page(each) for each in wanted))

    async def main() -> None:
        one, two, other = await ask(Wanted(), Wanted(), Wanted(accept=OPENMETRICS))
        assert one is two
        assert other is not one
        now[0] += 0.95
        (later,) = await ask(Wanted())
        assert later is not one
        first, second = await ask(Wanted(per_rank=PerRank.ALL), Wanted(per_rank=PerRank.ALL, job="other"))
        assert b"ncclwatch_rank_state{" in first.body
        assert b"ncclwatch_rank_state{" not in second.body

    asyncio.run(main())


@pytest.mark.parametrize("per_rank", PerRank)
def test_both_formats_can_be_parsed_and_names_no_target_label(per_rank: PerRank, fleet: Fleet) -> None:
    watch = watching()
    big(watch, fleet)
    incident = opened(watch)
    newer = list(text_string_to_metric_families(page(watch, Wanted(accept=OPENMETRICS, per_rank=per_rank))))
    older = list(older_families(page(watch, Wanted(per_rank=per_rank))))
    for families in (newer, older):
        labels = {label for family in families for sample in family.samples for label in sample.labels}
        assert not labels & TARGET_LABELS
        names = [family.name for family in families]
        assert len(names) == len(set(names))
        assert ("ncclwatch_rank_state" in names) == (per_rank is PerRank.ALL)
    exemplars = [sample.exemplar for family in newer for sample in family.samples if sample.exemplar]
    assert [exemplar.labels for exemplar in exemplars] == [{"incident_id": incident}]


@pytest.mark.parametrize("per_rank", PerRank)
def test_promtool_finds_nothing_to_complain_of(per_rank: PerRank, fleet: Fleet) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: apt-get install -y --no-install-recommends prometheus"
    watch = watching()
    big(watch, fleet)
    opened(watch)
    text = page(watch, Wanted(per_rank=per_rank))
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    spoiled = subprocess.run(
        [promtool, "check", "metrics"],
        input=text.replace("job_step", "jobStep"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert spoiled.returncode != 0


def test_what_jobs_and_hosts_are_called_cannot_break_a_line() -> None:
    watch = watching()
    name = 'a"b\\c}{,='
    (job,) = announced(watch, job=name).listed()
    digest(job.state, 0, 91.0, dict.fromkeys(range(4), 0.0))
    job.state.fold(91.0)
    families = older_families(page(watch, Wanted(per_rank=PerRank.ALL)))
    states = [sample for family in families if family.name == "ncclwatch_rank_state" for sample in family.samples]
    assert {sample.labels["job_id"] for sample in states} == {name}
    assert escaped("a\nb") == r"a\nb"


def test_counters_of_the_server_begin_at_nought_so_that_their_first_rise_is_seen() -> None:
    watch = watching()
    before = series(watch)
    for at in RefusedAt:
        assert before[f'ncclwatch_agents_refused_total{{at="{at.value}"}}'] == 0
        watch.counters.count_refused(at)
    watch.counters.count_capture_failures("stacks", 3)
    after = series(watch)
    assert sum(value for name, value in after.items() if name.startswith("ncclwatch_agents_refused")) == len(RefusedAt)
    assert after['ncclwatch_capture_failures_total{evidence="stacks"}'] == 3
    causes = {re.findall(r'cause="(\w+)"', name)[0] for name in before if name.startswith("ncclwatch_incidents_total")}
    assert causes == {cause.value for cause in Cause}
    assert not [name for name in before if "_created" in name]


def test_an_answer_is_timed_once_and_by_what_was_asked_for() -> None:
    now = [5.0]
    link = Link(number=1, agent="a", host="h", version="1", clock=lambda: now[0])
    asked = link.command(wire.CommandKind.STACKS, 0, (1,))
    link.command(wire.CommandKind.PRINT, 0, text="hello")
    now[0] = 6.5
    assert link.answered(asked) == (wire.CommandKind.STACKS, 1.5)
    assert link.answered(asked) is None
    assert link.answered(asked + 1) is None
    assert link.answered(0) is None


def test_time_in_hangs_is_counted_while_a_critical_incident_is_open() -> None:
    now = [100.0]
    watch = Watch(judge, IncidentBook(), NoStore(), clock=lambda: now[0], wall=lambda: WALL)
    (job,) = announced(watch).listed()
    opened(watch, severity=Severity.WARNING, seq=3)
    for _ in range(3):
        now[0] += 1.0
        watch._tick(now[0])
    assert job.hung_s == 0
    opened(watch)
    for _ in range(5):
        now[0] += 1.5
        watch._tick(now[0])
    assert job.hung_s == 7.5


def test_what_hangs_have_cost_is_told_by_cause_when_they_are_over() -> None:
    watch = watching()
    announced(watch)
    incident = watch.book.get(opened(watch))
    assert incident is not None
    cause = f'{{cause="{incident.verdict.cause.value}"}}'
    figures = ("lost_seconds", "lost_rank_seconds", "lost_gpu_seconds", "incidents_recovered", "incidents_came_back")
    assert [series(watch)[f"ncclwatch_{name}_total{cause}"] for name in figures] == [0, 0, 0, 0, 0]
    closed = replace(incident, closed_at=WALL + 8.0, state=IncidentState.ENDED, gpus=3)
    watch.counters.count_closed(closed)
    watch.counters.count_recovered(replace(closed, recovered_after_s=15.0))
    watch.counters.count_came_back(closed)
    assert [series(watch)[f"ncclwatch_{name}_total{cause}"] for name in figures] == [15, 60, 45, 1, 1]
    assert len([name for name in series(watch) if name.startswith("ncclwatch_lost_seconds")]) == 1


def test_of_a_hang_that_ended_while_no_server_ran_nobody_knows_what_it_has_cost() -> None:
    watch = watching()
    announced(watch)
    incident = opened(watch)
    watch.jobs.listed()[0].key = JobKey(name="another", instance="", attempt=0)
    watch._close_orphans()
    closed = watch.book.get(incident)
    assert closed is not None
    assert (closed.state, closed.end_seen, watch.counters.costs) == (IncidentState.ENDED, False, {})


def test_groups_are_called_what_torch_calls_them_where_that_is_a_number() -> None:
    assert group_name(name_key("0"), 1) == "0"
    assert group_name(name_key("5000"), 4000) == "5000"
    assert group_name(name_key("mesh_dp"), 4) == f"{name_key('mesh_dp'):08x}"


def test_ranks_are_counted_below_at_and_above_a_bound() -> None:
    spread = Spread.of(np.array([0.9, 1.0, 1.1, 5.0]), (1.0, 5.0))
    assert spread == Spread(counts=(2, 4, 4), total=8.0)
