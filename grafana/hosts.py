"""Shows whether it is the host or the GPU: DCGM and node_exporter beside what ncclwatch suspects."""

from grafana.board import dashboard as board
from grafana.board import server_variable, variable
from grafana.panels import HOST_LINK, INCIDENT_LINK, SERVER, SUSPECT_COLUMNS, Json, Query, lines, number, table

_HOST = 'host=~"$host"'
_NAMED = 'on (instance) group_left (nodename) node_uname_info{nodename=~"$host"}'
_BANDS = (("idle, below 5 %", "< 0.05"), ("5 to 50 %", ">= 0.05 < 0.5"), ("50 to 90 %", ">= 0.5 < 0.9"),
          ("above 90 %", ">= 0.9"))  # fmt: skip


def dashboard() -> dict[str, Json]:
    """Return the dashboard of hosts and GPUs."""
    fleet = (
        lines("GPUs by utilisation", "All of them, in bands. In a hang GPUs spin in NCCL kernels and look busy.",
              *(Query(expr=f"count(ncclwatch:gpu_utilization:ratio {band}) or vector(0)", legend=words)
                for words, band in _BANDS), stacked=True),
        lines("Hosts with the idlest GPUs", "The ten with the lowest average.",
              Query(expr="bottomk(10, avg by (host) (ncclwatch:gpu_utilization:ratio))", legend="{{host}}"),
              unit="percentunit", maximum=1),
        table("Suspects", "Ranks that open incidents name, by host. The first fifty.",
              f"topk(50, ncclwatch_suspect_rank_info{{{SERVER}}})",
              links=(("incident_id", INCIDENT_LINK), ("host", HOST_LINK)), width=12,
              columns=SUSPECT_COLUMNS, without=("severity",)),
        table("Last Xid", "GPUs that have reported one, fifty at most.", "topk(50, ncclwatch:gpu_xid:last > 0)",
              names=("Xid",), width=12),
    )  # fmt: skip
    gpus = (
        lines("GPU utilisation", "The sixteen busiest of the chosen hosts.",
              Query(expr=f"topk(16, ncclwatch:gpu_utilization:ratio{{{_HOST}}})", legend="{{host}} GPU {{gpu}}"),
              unit="percentunit", maximum=1),
        lines("GPU memory in use", "The sixteen fullest of the chosen hosts.",
              Query(expr=f"topk(16, ncclwatch:gpu_memory_used:bytes{{{_HOST}}})", legend="{{host}} GPU {{gpu}}"),
              unit="bytes"),
        lines("GPU temperature", "The sixteen hottest of the chosen hosts.",
              Query(expr=f"topk(16, ncclwatch:gpu_temperature:celsius{{{_HOST}}})", legend="{{host}} GPU {{gpu}}"),
              unit="celsius"),
        number("New Xids", "In the time shown, on the chosen hosts.",
               f"sum(changes(ncclwatch:gpu_xid:last{{{_HOST}}}[$__range])) or vector(0)",
               thresholds=((None, "green"), (1, "red")), width=12),
    )  # fmt: skip
    hosts = (
        lines("CPU in use", "The ten busiest of the chosen hosts.",
              Query(expr=('topk(10, 1 - avg by (nodename) (rate(node_cpu_seconds_total{mode="idle"}[$__rate_interval])'
                          f" * {_NAMED}))"), legend="{{nodename}}"), unit="percentunit", maximum=1),
        lines("Memory available", "The ten with the least of the chosen hosts.",
              Query(expr=f"bottomk(10, sum by (nodename) (node_memory_MemAvailable_bytes * {_NAMED}))",
                    legend="{{nodename}}"), unit="bytes"),
        lines("Network received", "The ten busiest of the chosen hosts, loopback left out.",
              Query(expr=('topk(10, sum by (nodename) (rate(node_network_receive_bytes_total{device!="lo"}'
                          f"[$__rate_interval]) * {_NAMED}))"), legend="{{nodename}}"), unit="Bps"),
        lines("Waiting for storage", "Share of CPU time in iowait, the ten highest of the chosen hosts.",
              Query(expr=('topk(10, avg by (nodename) (rate(node_cpu_seconds_total{mode="iowait"}[$__rate_interval])'
                          f" * {_NAMED}))"), legend="{{nodename}}"), unit="percentunit"),
    )  # fmt: skip
    return board(
        "ncclwatch-hosts", "ncclwatch / Host and GPU", "Hosts and GPUs by DCGM and node_exporter, beside the suspects.",
        (server_variable(), variable("host", "Host", "label_values(ncclwatch:gpu_utilization:ratio, host)", multi=True)),
        (("Fleet", fleet), ("GPUs", gpus), ("Hosts", hosts)), incidents_of=SERVER,
    )  # fmt: skip
