"""Shows what is known of one open incident, and what the job did before it."""

from grafana.board import dashboard as board
from grafana.board import server_variable, variable
from grafana.panels import (
    ANY_IS_ODD,
    HOST_LINK,
    INCIDENT_COLUMNS,
    INCIDENT_LINK,
    INCIDENT_WITHOUT,
    SERVER,
    SUSPECT_COLUMNS,
    Json,
    Query,
    heatmap,
    lines,
    number,
    table,
)

_IT = f'{SERVER},incident_id="$incident_id"'
_ITS_JOB = f"on (instance, job_id) group_left () max by (instance, job_id) (ncclwatch_incident_info{{{_IT}}})"


def dashboard() -> dict[str, Json]:
    """Return the dashboard of one incident."""
    now = (
        number("Since its onset", "For how long the job has stood.",
               f"time() - max(ncclwatch_incident_onset_timestamp_seconds{{{_IT}}})", unit="s", width=4,
               thresholds=((None, "red"),)),
        number("Blocked ranks", "Who waits because of it.", f"max(ncclwatch_incident_blocked_ranks{{{_IT}}})", width=4,
               thresholds=ANY_IS_ODD),
        number("Ranks of the job", "World size.", f"max(ncclwatch_job_world_size * {_ITS_JOB})", width=4),
        number("GPU hours so far", "Since the onset, all ranks of the job.",
               f"max((time() - ncclwatch_incident_onset_timestamp_seconds{{{_IT}}}) / 3600"
               " * on (instance, job_id) group_left () max by (instance, job_id) (ncclwatch_job_world_size))",
               unit="h", width=4),
        number("Suspects", "Ranks that the verdict names.", f"count(ncclwatch_suspect_rank_info{{{_IT}}})", width=4),
        number("Incidents of its job", "Open now.", f"sum(ncclwatch_incident_open * {_ITS_JOB})", width=4),
    )  # fmt: skip
    verdict = (
        table("Verdict", "The sentence, the line, the advice and how sure it is. A click on the id opens the page with "
              "the evidence and the stacks.", f"ncclwatch_incident_info{{{_IT}}}",
              links=(("incident_id", INCIDENT_LINK),), height=6, columns=INCIDENT_COLUMNS, without=INCIDENT_WITHOUT),
        table("Suspects", "Sixteen at most.", f"ncclwatch_suspect_rank_info{{{_IT}}}",
              links=(("host", HOST_LINK),), height=6, columns=SUSPECT_COLUMNS),
    )  # fmt: skip
    around = (
        heatmap("Ranks by wait", "How the wait spread through the job.",
                f"sum by (le) (ncclwatch_job_rank_wait_seconds_bucket * {_ITS_JOB})", unit="s"),
        heatmap("Ranks by lag", "Who is behind, and by how much.",
                f"sum by (le) (ncclwatch_job_rank_lag_collectives_bucket * {_ITS_JOB})", unit="short"),
        lines("Ranks by state", "Of its job.",
              Query(expr=f"sum by (state) (ncclwatch_ranks * {_ITS_JOB})", legend="{{state}}"), stacked=True),
        lines("Groups by oldest operation", "Where the wait began: the ten oldest operations of its job.",
              Query(expr=("topk(10, max by (process_group) ((time() - "
                          f"ncclwatch_process_group_oldest_inflight_timestamp_seconds) * {_ITS_JOB}))"),
                    legend="group {{process_group}}"), unit="s"),
        lines("GPUs of the suspects' hosts", "At work, idle, or waiting in a kernel (which counts as work).",
              Query(expr=("topk(16, ncclwatch:gpu_utilization:ratio and on (host) "
                          f"ncclwatch_suspect_rank_info{{{_IT}}})"), legend="{{host}} GPU {{gpu}}"),
              unit="percentunit", maximum=1, width=24),
    )  # fmt: skip
    return board(
        "ncclwatch-incident", "ncclwatch / Incident", "One open incident: how long, how many, who, and what came before.",
        (server_variable(),
         variable("incident_id", "Incident", f"label_values(ncclwatch_incident_info{{{SERVER}}}, incident_id)",
                  everything=False)),
        (("Now", now), ("Verdict", verdict), ("Around it", around)), incidents_of=_IT,
    )  # fmt: skip
