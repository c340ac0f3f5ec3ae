"""Follows a rank's saves: which file is written, how far it has come, and whether it can be written at all.

The ring says that a thread saves and where to. The rest is seen from outside, so also of a rank in state D. What would
wait for a file system is asked beside (`file_places`).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from ncclwatch.contract import config
from ncclwatch.contract.digests import SAVE_TROUBLE
from ncclwatch.contract.groups import text_key
from ncclwatch.contract.model.rank import SaveView
from ncclwatch.contract.ring.rows import SaveRow
from ncclwatch.contract.ring.views import Picture, age_s
from ncclwatch_agent.saves.file_places import PLACES, FilePlace, FilePlaces
from ncclwatch_agent.saves.open_files import OpenFile, open_file, written_files
from ncclwatch_agent.saves.sizes import SaveSizes

RATE_S = 10.0  # over which the rate of a writer is measured
PLACE_S = 3.0  # between two looks at the place of a save that is under way
_SHARDED = "dcp."  # every rank gives the same directory, and writes files of its own there


class SaveWatch:
    """Watches the saves of one process. Never waits for a file system."""

    def __init__(self, pid: int, places: FilePlaces = PLACES) -> None:
        self._pid = pid
        self._places = places
        self._same_mounts: bool | None = None  # None: nobody has looked
        self._saves: dict[int, _Save] = {}  # by thread row
        self._sizes = SaveSizes()

    def observe(self, now_ns: int, rows: Iterable[SaveRow], *, visible: bool = True) -> None:
        """Look once at each save that is under way or has just ended. `visible`: its process is here."""
        if visible and self._same_mounts is None:
            self._same_mounts = _same_mounts(self._pid)
        for row in rows:
            known = self._saves.get(row.thread)
            if row.ended_ns and age_s(now_ns, row.ended_ns) > config.SAVE_KEPT_S:
                self._saves.pop(row.thread, None)
                continue
            if known is None or known.row.began_ns != row.began_ns:
                known = self._saves[row.thread] = _Save(row)
            ended = row.ended_ns and not known.row.ended_ns
            known.row = row
            due = ended or not known.asked_ns or age_s(now_ns, known.asked_ns) >= PLACE_S
            if due and row.path.startswith("/") and self._same_mounts:
                known.asked_ns = now_ns
                self._places.ask(row.path)
            place = self._places.get(row.path)
            if row.ended_ns and not row.error and place is not None and place.looked_ns >= row.ended_ns:
                if not known.sized:
                    self._sizes.ended(row, place)
                known.sized = True
            if visible and not row.ended_ns:
                known.look(self._pid, place.path if place is not None else row.path, now_ns)

    def place(self, path: str) -> FilePlace | None:
        """Return what the newest look at a path found, None before the first one has come back."""
        return self._places.get(path)

    def key(self) -> int:
        """Return what a digest says of the newest save, see `digests.RANK_FIELDS`."""
        found = 0
        for save in sorted(self._saves.values(), key=lambda each: each.row.began_ns):
            place = self._places.get(save.row.path)
            if save.row.error or (place is not None and place.refused and not save.row.ended_ns):
                return SAVE_TROUBLE
            if self._sizes.lacks(save.row, place):
                return SAVE_TROUBLE
            if place is not None and place.identity and not save.row.call.startswith(_SHARDED):
                found = text_key(place.identity)
        return found

    def views(self, picture: Picture, *, visible: bool = True) -> tuple[SaveView, ...]:
        """Return what is known of these saves, as of this moment: whether two overlap is told by their views."""
        self.observe(picture.now_ns, picture.ring.saves(), visible=visible)
        tids = {row.number: row.tid for row in picture.threads}
        return tuple(self._view(picture, save, tids.get(number, 0)) for number, save in sorted(self._saves.items()))

    def _view(self, picture: Picture, save: "_Save", tid: int) -> SaveView:
        row, now_ns = save.row, picture.now_ns
        place = self._places.get(row.path) or FilePlace(path=row.path)
        sharded = row.call.startswith(_SHARDED)
        total, as_before = self._sizes.total(row)
        return SaveView(
            call=row.call,
            path=row.path,
            tid=tid,
            began_s=age_s(now_ns, row.began_ns),
            ended_s=age_s(now_ns, row.ended_ns) if row.ended_ns else None,
            site=picture.site(row.site),
            error=row.error,
            file=save.file.path if save.file is not None else "",
            identity="" if sharded else place.identity,
            inode=place.inode,
            appends=save.file is not None and save.file.appends,
            written_bytes=save.file.position if save.file is not None else -1,
            total_bytes=total,
            as_before=as_before,
            lacks_bytes=self._sizes.lacks(row, self._places.get(row.path)),
            bytes_per_s=save.rate(),
            still_s=save.still_s(now_ns),
            filesystem=place.filesystem,
            free_bytes=place.free_bytes,
            refused=place.refused,
            unanswered_s=self._places.unanswered_s(row.path, now_ns),
        )


def _same_mounts(pid: int) -> bool:
    """Say whether a path of a process leads to the same here: a container has mounts of its own."""
    try:
        theirs, ours = (Path(f"/proc/{name}/ns/mnt").readlink() for name in (pid, "self"))
    except OSError:
        return False
    return theirs == ours


class _Save:
    """One save and how far its file has come."""

    __slots__ = ("_grown_ns", "_positions", "asked_ns", "file", "row", "sized")

    def __init__(self, row: SaveRow) -> None:
        self.row = row
        self.file: OpenFile | None = None
        self.asked_ns = 0
        self.sized = False  # what its file has come to is remembered
        self._positions: deque[tuple[int, int]] = deque()  # (time, bytes), over RATE_S
        self._grown_ns = row.began_ns

    def look(self, pid: int, path: str, now_ns: int) -> None:
        """Note how far the file at `path` has come; which one it is, if that is not known or it is closed."""
        known = self.file
        self.file = open_file(pid, known.fd, known.path) if known is not None else None
        if self.file is None or (known is not None and self.file.position < known.position):
            self.file = file_of(path, written_files(pid))
        if self.file is None:
            self.file = known  # closed: what it had come to
            return
        if known is not None and self.file.path != known.path:
            self._positions.clear()  # another shard
        if not self._positions or self.file.position != self._positions[-1][1]:
            self._grown_ns = now_ns
        self._positions.append((now_ns, self.file.position))
        while len(self._positions) > 2 and age_s(now_ns, self._positions[0][0]) > RATE_S:
            self._positions.popleft()

    def rate(self) -> float:
        """Return bytes per second over the last seconds, 0 if they are not known."""
        if len(self._positions) < 2:
            return 0.0
        (then_ns, before), (now_ns, after) = self._positions[0], self._positions[-1]
        return max(0.0, (after - before) / ((now_ns - then_ns) / 1e9)) if now_ns > then_ns else 0.0

    def still_s(self, now_ns: int) -> float:
        """Return for how long the file has not grown; 0 where none was seen."""
        return age_s(now_ns, self._grown_ns) if len(self._positions) > 1 and not self.row.ended_ns else 0.0


def file_of(path: str, files: Sequence[OpenFile]) -> OpenFile | None:
    """Return which of the files that a process writes belongs to a save to `path`.

    The file itself, a shard below its directory, or a neighbour whose name has that of the file in it: many writers
    use a temporary name and rename at the end.
    """
    if not path.startswith("/"):
        return None
    wanted = Path(path)
    choices = [file for file in files if file.path == path]
    choices += [file for file in files if file.path.startswith(f"{path}/")]
    choices += [
        file for file in files if Path(file.path).parent == wanted.parent and wanted.stem in Path(file.path).name
    ]
    return choices[0] if choices else None
