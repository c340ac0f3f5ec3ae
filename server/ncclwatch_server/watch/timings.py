"""Measures how long things took on this server, in histograms of prometheus-client, in no registry of their own."""

from collections.abc import Iterator

from prometheus_client import Histogram
from prometheus_client.core import Metric
from prometheus_client.samples import Sample


class Timings:
    """What is observed as it happens. Safe to read from another thread."""

    def __init__(self) -> None:
        self._detection = Histogram(
            "ncclwatch_detection_delay_seconds",
            "From the onset of a wait to its open incident; the exemplar names the incident",
            ["certainty", "severity"],
            buckets=(1, 2, 3, 5, 8, 12, 20, 30, 60, 300, 1800),
            registry=None,
        )
        self._capture = Histogram(
            "ncclwatch_capture_duration_seconds",
            "From a question to an agent to its answer, by what was asked for",
            ["evidence"],
            buckets=(0.02, 0.1, 0.5, 1, 2, 5, 10, 30),
            registry=None,
        )
        self._loop_lag = Histogram(
            "ncclwatch_event_loop_lag_seconds",
            "How late the event loop came to something that was due",
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2),
            registry=None,
        )
        for evidence in ("inspect", "stacks", "witness"):
            self._capture.labels(evidence)

    def detected(self, certainty: str, severity: str, delay_s: float, incident: str) -> None:
        """Note that an incident opened so long after its onset."""
        self._detection.labels(certainty, severity).observe(delay_s, {"incident_id": incident})

    def captured(self, evidence: str, took_s: float) -> None:
        """Note that an agent answered."""
        self._capture.labels(evidence).observe(took_s)

    def lagged(self, late_s: float) -> None:
        """Note how late the event loop was."""
        self._loop_lag.observe(late_s)

    def collect(self) -> Iterator[Metric]:
        """Yield the histograms, without the moments of their creation: those double the series and tell nothing."""
        for histogram in (self._detection, self._capture, self._loop_lag):
            for metric in histogram.collect():
                metric.samples = [each for each in metric.samples if not _created(each)]
                yield metric


def _created(sample: Sample) -> bool:
    return sample.name.endswith("_created")
