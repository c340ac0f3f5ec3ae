"""Reads what a ring tells that a rank left behind. Nobody writes to it any more: the clock stands at its last pulse.

The agent of a live job joins a ring with what the kernel says of the process. Here there is no process, so
its state is unknown and what threads did is what the pulse last saw.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ncclwatch.contract import config
from ncclwatch.contract.errors import RingError
from ncclwatch.contract.model.rank import Ending, FileView, RankView, ThreadView, WaitKind
from ncclwatch.contract.ring.layout import MAGIC, Word
from ncclwatch.contract.ring.members import unpacked
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.views import Picture, parse_note, rank_view
from ncclwatch_server.limits import RANKS_MAX
from ncclwatch_server.offline.errors import Unreadable

__all__ = ["MAGIC", "Left", "read", "views_of"]

PULSE_LAG_S = 3.0  # a pulse that stopped so long before the others of its host stopped for a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A ring as it was left."""

    view: RankView
    pulse_ns: int  # of the node's clock
    path: str
    job: str = ""  # its name


def read(path: str, history_max: int = config.HISTORY_MAX) -> Left:
    """Return what a ring tells, with so many operations. Raises `Unreadable`."""
    try:
        with Ring(path) as ring:
            if max(ring.header.world_size, ring.header.rank + 1) > RANKS_MAX:
                raise Unreadable(f"it says that its job has {ring.header.world_size} ranks, and is damaged")
            left_ns = max(ring.words()[Word.PULSE_NS], ring.header.created_ns)
            return _left(Picture.of(ring, left_ns, history_max), path)
    except (RingError, ValueError) as error:
        raise Unreadable(str(error).removeprefix(f"{path}: ")) from error


def _left(picture: Picture, path: str) -> Left:
    (view,) = unpacked((rank_view(picture),))
    view = replace(
        view,
        ending=_ending(picture),
        threads=tuple(_last_seen(thread) for thread in view.threads),
        file=FileView(source="ring", path=path, timed=True, saw_host=True),
    )
    return Left(view=view, pulse_ns=picture.now_ns, path=path, job=picture.ring.identity().get("job", ""))


def _last_seen(thread: ThreadView) -> ThreadView:
    """Return a thread whose CPU nobody measured: one in the autograd engine for long waited there for its buckets."""
    in_backward = thread.wait is not None and thread.wait.kind is WaitKind.BACKWARD
    return replace(thread, cpu_still_s=thread.same_s if in_backward else 0.0)


def _ending(picture: Picture) -> Ending | None:
    """Return what the rank's exit hooks wrote of its end."""
    if not picture.words[Word.ENDED]:
        return None
    note = parse_note(picture.text(Word.ENDED))
    return replace(note, age_s=picture.age_s(picture.words[Word.ENDED_NS])) if note is not None else None


def views_of(found: Iterable[Left]) -> dict[int, RankView]:
    """Return the views of rings, each as of the moment when the last ring of its host was left.

    The clocks of one host agree with each other, and not with those of other hosts.
    """
    rings = list(found)
    newest: dict[str, int] = {}
    for left in rings:
        newest[left.view.host] = max(newest.get(left.view.host, 0), left.pulse_ns)
    return {left.view.rank: _later(left.view, (newest[left.view.host] - left.pulse_ns) / 1e9) for left in rings}


def _later(view: RankView, lag_s: float) -> RankView:
    """Return a view as news of so long ago; a pulse that stopped so long before the others' stopped for a reason."""
    file = replace(view.file, older_s=lag_s) if view.file is not None else None
    return replace(view, news_age_s=lag_s, pulse_age_s=lag_s if lag_s >= PULSE_LAG_S else 0.0, file=file)
