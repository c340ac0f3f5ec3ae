"""Shows how one job is doing, with the same panels for 8 ranks and for 16,384."""

from grafana.board import dashboard as board
from grafana.board import server_variable, variable
from grafana.fleet import JOB_STATES
from grafana.panels import (
    ANY_IS_ODD,
    HOST_LINK,
    INCIDENT_LINK,
    JOB,
    SERVER,
    SUSPECT_COLUMNS,
    Json,
    Query,
    heatmap,
    lines,
    number,
    table,
)


def dashboard() -> dict[str, Json]:
    """Return the dashboard of one job."""
    now = (
        number("State", "Hung: a critical incident is open.",
               f'max(2 * ncclwatch_job_state{{{JOB},state="hung"}}) + max(ncclwatch_job_state{{{JOB},state="waiting"}})',
               mappings=JOB_STATES),
        number("Ranks", "World size.", f"max(ncclwatch_job_world_size{{{JOB}}})"),
        number("Step", "Optimizer steps of the rank that is furthest.", f"max(ncclwatch_job_step{{{JOB}}})"),
        number("Last progress", "Since any rank issued or completed something.",
               f"max(job_id:ncclwatch_progress_age:seconds{{{JOB}}})", unit="s",
               thresholds=((None, "green"), (60, "orange"), (600, "red"))),
        number("Longest wait", "For peers, without a sign of progress.",
               f"max(ncclwatch_job_longest_wait_seconds{{{JOB}}})", unit="s",
               thresholds=((None, "green"), (10, "orange"), (60, "red"))),
        number("Stalled ranks", "Waiting and still, stopped, in disk wait, or silent.",
               f"sum(job_id:ncclwatch_ranks_stalled:sum{{{JOB}}})", thresholds=ANY_IS_ODD),
        number("Restarts", "How often the launcher has started it again.", f"max(ncclwatch_job_attempt{{{JOB}}})",
               thresholds=ANY_IS_ODD),
        number("GPU hours lost", "In hangs, over the last day.",
               f"sum(job_id:ncclwatch_gpu_hours_lost:increase1d{{{JOB}}})", unit="h"),
    )  # fmt: skip
    ranks = (
        lines("Ranks by state", "All of them, stacked. Anything but green for long is worth a look.",
              Query(expr=f"sum by (state) (ncclwatch_ranks{{{JOB}}})", legend="{{state}}"), stacked=True),
        lines("Nodes by state", "Quiet: connected and silent. Lost: the connection broke.",
              Query(expr=f"sum by (state) (ncclwatch_hosts{{{JOB}}})", legend="{{state}}"), stacked=True),
        heatmap("Ranks by wait", "For how long they have waited for peers. One bad rank makes all others climb.",
                f"sum by (le) (ncclwatch_job_rank_wait_seconds_bucket{{{JOB}}})", unit="s"),
        heatmap("Ranks by lag", "Collectives behind the first member of a group. Ranks far above the rest are behind.",
                f"sum by (le) (ncclwatch_job_rank_lag_collectives_bucket{{{JOB}}})", unit="short"),
        table("Suspects", "Culprits of open incidents, sixteen at most. Empty while nothing is wrong.",
              f"ncclwatch_suspect_rank_info{{{JOB}}}",
              links=(("incident_id", INCIDENT_LINK), ("host", HOST_LINK)), height=6, columns=SUSPECT_COLUMNS),
    )  # fmt: skip
    progress = (
        lines("Steps per second", "Of the rank that is furthest.",
              Query(expr=f"max by (job_id) (deriv(ncclwatch_job_step{{{JOB}}}[$__rate_interval]))", legend="{{job_id}}")),
        lines("Collectives per second", "Summed over all ranks.",
              Query(expr=f"max by (job_id) (job_id:ncclwatch_collectives_completed:rate1m{{{JOB}}})",
                    legend="{{job_id}}"), unit="ops"),
        lines("Groups by lag", "Collectives between the first and the last member, the ten widest groups.",
              Query(expr=f"topk(10, max by (process_group) (ncclwatch_process_group_sequence_lag{{{JOB}}}))",
                    legend="group {{process_group}}"),
              Query(expr=f"max(ncclwatch_job_sequence_lag{{{JOB}}})", legend="widest of all groups")),
        lines("Groups by oldest operation", "For how long the oldest unfinished operation runs, the ten oldest.",
              Query(expr=(f"topk(10, max by (process_group) (time() - "
                          f"ncclwatch_process_group_oldest_inflight_timestamp_seconds{{{JOB}}}))"),
                    legend="group {{process_group}}"), unit="s"),
        lines("Groups by rate", "Collectives per second, the ten busiest groups among those that are told.",
              Query(expr=("topk(10, max by (process_group) "
                          f"(rate(ncclwatch_process_group_collectives_completed_total{{{JOB}}}[$__rate_interval])))"),
                    legend="group {{process_group}}"), unit="ops", width=24),
    )  # fmt: skip
    return board(
        "ncclwatch-job", "ncclwatch / Job", "One job: its ranks by state, wait and lag, its groups and its suspects.",
        (server_variable(),
         variable("job_id", "Job", f"label_values(ncclwatch_job_info{{{SERVER}}}, job_id)", everything=False)),
        (("Now", now), ("Ranks", ranks), ("Progress", progress)), incidents_of=JOB,
    )  # fmt: skip
