"""Shows whether a job hangs, and which: the first page of whoever runs the cluster."""

from grafana.board import dashboard as board
from grafana.board import server_variable
from grafana.panels import (
    ANY_IS_BAD,
    ANY_IS_ODD,
    INCIDENT_COLUMNS,
    INCIDENT_LINK,
    INCIDENT_WITHOUT,
    JOB_LINK,
    SERVER,
    Json,
    Query,
    bars,
    lines,
    number,
    states,
    table,
)

JOB_STATES = (("0", "running", "green"), ("1", "waiting", "yellow"), ("2", "hung", "red"))
_STATE = (
    f'max by (job_id) (2 * ncclwatch_job_state{{{SERVER},state="hung"}})'
    f' + max by (job_id) (ncclwatch_job_state{{{SERVER},state="waiting"}})'
)


def _started_again(fate: str) -> str:
    return f"sum by (cause) (increase(ncclwatch_incidents_{fate}_total{{{SERVER}}}[$__range])) > 0"


def dashboard() -> dict[str, Json]:
    """Return the dashboard of all jobs."""
    now = (
        number("Jobs hung", "A critical incident is open: these burn their GPUs.",
               f'sum(ncclwatch_jobs{{{SERVER},state="hung"}})', thresholds=ANY_IS_BAD),
        number("Jobs waiting", "Ranks wait for one that works. Normal for a while.",
               f'sum(ncclwatch_jobs{{{SERVER},state="waiting"}})', thresholds=ANY_IS_ODD),
        number("Jobs running", "Nothing is wrong with them.", f'sum(ncclwatch_jobs{{{SERVER},state="running"}})'),
        number("Ranks watched", "Of jobs that are not over.", f"sum(ncclwatch_ranks{{{SERVER}}})"),
        number("Ranks stalled", "Waiting and still, stopped, in disk wait, or silent.",
               f"sum(job_id:ncclwatch_ranks_stalled:sum{{{SERVER}}})", thresholds=ANY_IS_ODD),
        number("Critical incidents", "Open now.",
               f'sum(ncclwatch_incident_open{{{SERVER},severity="critical"}}) or vector(0)', thresholds=ANY_IS_BAD),
        number("GPU hours lost", "In hangs, over the last day: duration of each hang times the ranks of its job.",
               f"sum(job_id:ncclwatch_gpu_hours_lost:increase1d{{{SERVER}}})", unit="h"),
        number("Nodes connected", "Agents that hold a connection.", f"sum(ncclwatch_agents_connected{{{SERVER}}})"),
    )  # fmt: skip
    jobs = (
        table(
            "Open incidents", "The first fifty. A click on an id opens the page with the verdict.",
            f"topk(50, ncclwatch_incident_info{{{SERVER}}})",
            links=(("incident_id", INCIDENT_LINK), ("job_id", JOB_LINK)), columns=INCIDENT_COLUMNS,
            without=INCIDENT_WITHOUT,
        ),
        table(
            "Jobs", "The fifty whose ranks have waited longest, what they have done, and how many ranks are stalled.",
            f"topk(50, max by (instance, job_id) (ncclwatch_job_longest_wait_seconds{{{SERVER}}}))",
            f"max by (instance, job_id) (ncclwatch_job_world_size{{{SERVER}}})",
            f"max by (instance, job_id) (ncclwatch_job_step{{{SERVER}}})",
            f"max by (instance, job_id) (job_id:ncclwatch_ranks_stalled:sum{{{SERVER}}})",
            names=("longest wait (s)", "ranks", "step", "stalled"),
            links=(("job_id", JOB_LINK),),
        ),
        states("States of jobs", "The thirty in the worst state.", Query(expr=f"topk(30, {_STATE})", legend="{{job_id}}"),
               JOB_STATES),
        lines("Stalled ranks", "The ten jobs with most of them.",
              Query(expr=f"topk(10, job_id:ncclwatch_ranks_stalled:sum{{{SERVER}}})", legend="{{job_id}}")),
        lines("Progress", "Collectives per second of all ranks, the ten busiest jobs. A line that falls to zero stands.",
              Query(expr=f"topk(10, job_id:ncclwatch_collectives_completed:rate1m{{{SERVER}}})", legend="{{job_id}}"),
              unit="ops"),
    )  # fmt: skip
    history = (
        bars("Causes", "Incidents opened in the time shown, the ten most frequent causes.",
             Query(expr=f"topk(10, sum by (cause) (increase(ncclwatch_incidents_total{{{SERVER}}}[$__range])) > 0)",
                   legend="{{cause}}")),
        bars("GPU hours lost by job", "Over the last day, the ten costliest.",
             Query(expr=f"topk(10, job_id:ncclwatch_gpu_hours_lost:increase1d{{{SERVER}}})", legend="{{job_id}}"), unit="h"),
        bars("GPU time lost by cause", "In hangs that were over in the time shown, the ten costliest causes.",
             Query(expr=f"topk(10, sum by (cause) (increase(ncclwatch_lost_gpu_seconds_total{{{SERVER}}}[$__range])) > 0)",
                   legend="{{cause}}"), unit="s"),
        bars("After a restart", "Hangs in the time shown whose job was started again: it went on, or hung as before.",
             Query(expr=f"topk(10, {_started_again('recovered')})", legend="{{cause}}: recovered"),
             Query(expr=f"topk(10, {_started_again('came_back')})", legend="{{cause}}: came back")),
    )  # fmt: skip
    return board(
        "ncclwatch-fleet", "ncclwatch / Fleet", "All jobs: which hang, which wait, what it costs.",
        (server_variable(),), (("Now", now), ("Jobs", jobs), ("Looking back", history)), incidents_of=SERVER,
    )  # fmt: skip
