"""What has this server done so far? Plain numbers that /metrics shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Counters:
    """Running totals. Only the event loop writes them."""

    digests: int = 0
    messages: int = 0
    refused: int = 0  # connections closed for what they sent
    judgements: int = 0
    judge_failures: int = 0
    look_failures: int = 0
    judge_s: float = 0.0
    ticks: int = 0
    tick_s: float = 0.0
    opened: dict[tuple[str, str], int] = field(default_factory=dict)  # (cause, severity)
    notified: Callable[[], Mapping[tuple[str, str], int]] = dict  # messages by (target, outcome)

    def count_opened(self, cause: str, severity: str) -> None:
        """Count an incident that opened."""
        self.opened[cause, severity] = self.opened.get((cause, severity), 0) + 1
