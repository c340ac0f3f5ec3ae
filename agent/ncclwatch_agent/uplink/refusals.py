"""Remembers which jobs one server does not watch: it is sent no news of them, but asked again now and then."""

AGAIN_S = 60.0  # it may have room by then


class Refusals:
    """The jobs that are refused on the present connection, by number."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._told: dict[int, str] = {}  # the newest reason, also of earlier connections

    def note(self, index: int, reason: str, now_s: float) -> bool:
        """Note that a job is refused. Returns whether the reason is a new one."""
        self._since[index] = now_s
        new = self._told.get(index) != reason
        self._told[index] = reason
        return new

    def holds(self, index: int) -> bool:
        """Whether a job is refused."""
        return index in self._since

    def due(self, index: int, now_s: float) -> bool:
        """Whether it is time to announce a refused job again."""
        return index in self._since and now_s - self._since[index] >= AGAIN_S

    def lift(self, index: int) -> None:
        """Note that a job is announced anew."""
        self._since.pop(index, None)

    def forget(self, index: int) -> None:
        """Forget a job that is over."""
        self._since.pop(index, None)
        self._told.pop(index, None)

    def start_over(self) -> None:
        """Note that the connection broke: the next one may take every job."""
        self._since.clear()
