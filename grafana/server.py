"""Shows whether ncclwatch itself is well: what it hears, how fast it judges, what it could not do."""

from grafana.board import dashboard as board
from grafana.board import server_variable
from grafana.panels import ANY_IS_BAD, SERVER, Json, Query, heatmap, lines, number

_OURS = f"on (instance) group_left () max by (instance) (ncclwatch_build_info{{{SERVER}}})"


def dashboard() -> dict[str, Json]:
    """Return the dashboard of the server."""
    now = (
        number("Nodes connected", "Agents that hold a connection.", f"sum(ncclwatch_agents_connected{{{SERVER}}})",
               width=4),
        number("Digests per second", "One for each node, job and second.",
               f"sum(rate(ncclwatch_digests_received_total{{{SERVER}}}[$__rate_interval]))", unit="ops", width=4),
        number("Quietest node", "Since it was heard; nodes report each second.",
               f"max(ncclwatch_digest_age_seconds{{{SERVER}}})", unit="s",
               thresholds=((None, "green"), (3, "orange"), (10, "red")), width=4),
        number("Agents refused", "In the time shown. The log says why.",
               f"sum(increase(ncclwatch_agents_refused_total{{{SERVER}}}[$__range]))", thresholds=ANY_IS_BAD, width=3),
        number("Not judged", "Snapshots on which the judge failed, and looks at jobs that did, in the time shown.",
               f"sum(increase(ncclwatch_judge_failures_total{{{SERVER}}}[$__range]))"
               f" + sum(increase(ncclwatch_look_failures_total{{{SERVER}}}[$__range]))",
               thresholds=ANY_IS_BAD, width=3),
        number("Oldest loop", "Since a loop of the server last went round. Most do so every second, the store every five.",
               f"max(ncclwatch_loop_last_tick_age_seconds{{{SERVER}}})", unit="s",
               thresholds=((None, "green"), (10, "orange"), (15, "red")), width=3),
        number("Not stored", "Writes that the store refused, in the time shown.",
               f"sum(increase(ncclwatch_store_write_failures_total{{{SERVER}}}[$__range]))"
               f" + sum(increase(ncclwatch_incidents_not_stored_total{{{SERVER}}}[$__range]))",
               thresholds=ANY_IS_BAD, width=3),
    )  # fmt: skip
    speed = (
        heatmap("Onset to incident", "Seconds from the beginning of a wait to its open incident. In OpenMetrics each "
                "carries its incident's id as exemplar.",
                f"sum by (le) (increase(ncclwatch_detection_delay_seconds_bucket{{{SERVER}}}[$__rate_interval]))", unit="s"),
        lines("Answers of agents", "95 % come within so long, by what was asked for.",
              Query(expr=("histogram_quantile(0.95, sum by (evidence, le) (increase("
                          f"ncclwatch_capture_duration_seconds_bucket{{{SERVER}}}[$__range]))) >= 0"), legend="{{evidence}}",
                    exemplars=True), unit="s"),
        lines("Event loop", "How late it is: half of the time, and one time in a hundred. Above 20 ms something is wrong.",
              Query(expr=("histogram_quantile(0.5, sum by (le) (rate("
                          f"ncclwatch_event_loop_lag_seconds_bucket{{{SERVER}}}[$__rate_interval])))"), legend="median"),
              Query(expr=("histogram_quantile(0.99, sum by (le) (rate("
                          f"ncclwatch_event_loop_lag_seconds_bucket{{{SERVER}}}[$__rate_interval])))"), legend="99 %"),
              unit="s"),
        lines("Time spent looking and judging", "Seconds per second. Near 1 the server does nothing else.",
              Query(expr=f"sum by (instance) (rate(ncclwatch_look_seconds_total{{{SERVER}}}[$__rate_interval]))",
                    legend="looking, {{instance}}"),
              Query(expr=f"sum by (instance) (rate(ncclwatch_judge_seconds_total{{{SERVER}}}[$__rate_interval]))",
                    legend="judging, {{instance}}"), unit="percentunit"),
    )  # fmt: skip
    work = (
        lines("Work", "Per second.",
              Query(expr=f"sum(rate(ncclwatch_agent_messages_total{{{SERVER}}}[$__rate_interval]))", legend="messages"),
              Query(expr=f"sum(rate(ncclwatch_judgements_total{{{SERVER}}}[$__rate_interval]))", legend="judgements"),
              Query(expr=f"sum(rate(ncclwatch_ticks_total{{{SERVER}}}[$__rate_interval]))", legend="ticks"), unit="ops"),
        lines("What could not be had", "Ranks of which an agent could not get stacks or torch's own testimony.",
              Query(expr=f"sum by (evidence) (increase(ncclwatch_capture_failures_total{{{SERVER}}}[$__range]))",
                    legend="{{evidence}}")),
        lines("Memory", "Resident.", Query(expr=f"process_resident_memory_bytes * {_OURS}", legend="{{instance}}"),
              unit="bytes"),
        lines("CPU", "Cores in use.",
              Query(expr=f"rate(process_cpu_seconds_total[$__rate_interval]) * {_OURS}", legend="{{instance}}")),
        lines("Scrapes", "How long one takes.", Query(expr=f"scrape_duration_seconds * {_OURS}", legend="{{instance}}"),
              unit="s"),
        lines("Series", "Of one scrape; does not grow with the ranks.",
              Query(expr=f"scrape_samples_scraped * {_OURS}", legend="{{instance}}")),
    )  # fmt: skip
    return board(
        "ncclwatch-server", "ncclwatch / Server", "ncclwatch itself: what it hears, how fast it judges, what failed.",
        (server_variable(),), (("Now", now), ("Speed", speed), ("Work", work)), incidents_of=SERVER,
    )  # fmt: skip
