"""Says what the source lines of two sides tell about why they parted.

The agent reads the source on the node that has it; here its notes are compared. A note is evidence,
not proof: it chooses the name of the cause, never whether there is a hang.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ncclwatch.contract.model.rank import CallSite, OpView, RankView, SourceNote, WaitView
from ncclwatch.contract.model.verdict import Excerpt
from ncclwatch_server.judge.theory.histories.lines.rank_tests import asks_for_several, keeps_none_apart
from ncclwatch_server.judge.theory.waits.rank_standing import group_of

FRAMES_MAX = 8
PROGRAM = "<module>"  # the outermost function
_COUNTS = re.compile(r" in range\(")
_NAMES = re.compile(r"\w+")
_AXES = re.compile(
    r"local|node|group|parallel|replica|shard|stage|(?:^|_)(?:dp|tp|pp|ep|cp|sp|mp|ddp|fsdp|hsdp)(?:_|$)", re.IGNORECASE
)
_JOIN = re.compile(r"with\s+(?:[\w.\[\]]*\.join|(?:\w+\.)*Join)\(")


def note_at(view: RankView, site: CallSite | None) -> SourceNote | None:
    """Return what is known of a call site on this rank's node."""
    return next((note for note in view.sources if note.site == site), None)


def source_line(views: Iterable[RankView], site: CallSite | None) -> str:
    """Return the text of a call site and the test of the rank it stands under, "" if no node has read it."""
    notes = (note_at(view, site) for view in views if site is not None)
    note = next((note for note in notes if note is not None and note.text), None)
    if note is None:
        return ""
    return f"{note.text}  (under `{note.condition}`)" if note.condition else note.text


def is_of_join(view: RankView, site: CallSite | None) -> bool:
    """Say whether `torch.distributed.algorithms.Join` makes the call, as it does for ranks without any more inputs.

    It makes them where its context ends, which is the line of the `with` statement.
    """
    note = note_at(view, site)
    return note is not None and _JOIN.match(note.text.strip()) is not None


def excerpt_at(views: Iterable[RankView], site: CallSite) -> Excerpt | None:
    """Return the source around a call site, None if no node has read it."""
    notes = (note_at(view, site) for view in views)
    note = next((note for note in notes if note is not None and note.around), None)
    return Excerpt(site=site, lines=note.around, test_line=note.condition_line) if note is not None else None


def route_of(view: RankView, item: OpView | WaitView) -> tuple[CallSite, ...]:
    """Return the frames that led to an operation of this rank, innermost first; () if its callers are not known."""
    return view.routes[item.route - 1] if 0 < item.route <= len(view.routes) else ()


def frames_of(view: RankView, site: CallSite | None, route: tuple[CallSite, ...] = ()) -> tuple[CallSite, ...]:
    """Return the user's frames that lead to a call site, innermost first; the site alone if nobody looked.

    `route` is what was recorded with the operation that is meant; without it the newest one from that line is.
    A host that has run ahead of its device stands later in the program: where that is in the same function still, the
    callers are the same.
    """
    if site is None:
        return ()
    for thread in view.threads:
        if site in thread.frames:
            there = thread.frames[thread.frames.index(site) :][:FRAMES_MAX]
            if there[: len(route)] == route[:FRAMES_MAX]:
                return there
    newest = (route_of(view, op) for op in reversed(view.history) if op.site == site)
    known = route or next((way for way in newest if way), ())
    if site in known:
        return known[known.index(site) :][:FRAMES_MAX]
    for thread in view.threads:
        for number, frame in enumerate(thread.frames):
            if (frame.file, frame.function) == (site.file, site.function):
                return (site, *thread.frames[number + 1 :])[:FRAMES_MAX]
    return (site,)


def _whereabouts(view: RankView, site: CallSite | None) -> tuple[CallSite, ...]:
    """Return the frames of a call and those of where the host stands now: functions and loops it has not left since.

    The tests it stands under are no tests of the call, so `rank_condition` does not look there.
    """
    now = (frame for thread in view.threads for frame in thread.frames)
    return tuple(dict.fromkeys((*frames_of(view, site), *now)))


def rank_condition(
    view: RankView, site: CallSite | None, op: str, route: tuple[CallSite, ...] = ()
) -> SourceNote | None:
    """Return the note of the frame that runs on some ranks only, because a test of the rank says so.

    Where the other branch makes the same call, all ranks make it: that is no one-sided call.
    """
    for frame in frames_of(view, site, route):
        note = note_at(view, frame)
        if note is not None and note.condition:
            return None if same_call_elsewhere(note, op) else note
    return None


def group_condition(
    view: RankView, op: OpView | WaitView, site: CallSite | None, route: tuple[CallSite, ...] = ()
) -> SourceNote | None:
    """Return the note of the frame round a collective that may run on some members of its group only."""
    note, group = rank_condition(view, site, op.op.value, route), group_of(view, op.group)
    if note is None or group is None or not group.ranks:
        return note
    return None if keeps_none_apart(note.condition, view.rank, group.ranks) else note


def parting_condition(
    view: RankView, op: OpView | WaitView, site: CallSite | None, route: tuple[CallSite, ...] = ()
) -> SourceNote | None:
    """Return the note of the frame round a collective that runs on some members of its group only.

    Of a group of some ranks all may pass a test of a place on an axis, such as `local_rank == 0`, or one like
    `rank in members`.
    """
    note, group = group_condition(view, op, site, route), group_of(view, op.group)
    if note is None or group is None or not 0 < len(group.ranks) < view.world_size:
        return note
    return None if is_of_an_axis(note.condition) or asks_for_several(note.condition) else note


def is_of_an_axis(condition: str) -> bool:
    """Say whether a test asks for a rank's place on a node or an axis of a mesh, so that several ranks pass it."""
    return any(_AXES.search(name) for name in _NAMES.findall(condition))


def is_way_out(note: SourceNote | None) -> bool:
    """Say whether a call is made by those who have not left its loop at a test of the rank: "if rank == 1: break"."""
    return note is not None and note.condition.endswith((": break", ": return"))


def same_call_elsewhere(note: SourceNote, op: str) -> bool:
    """Say whether the branch not taken communicates too, in a way that could meet this operation."""
    stem = op.replace("_", "")
    return any(stem in call.replace("_", "").lower() for call in note.other_branch_ops)


def left_by_rank(view: RankView, site: CallSite | None, other: RankView, other_site: CallSite | None) -> str:
    """Return how the other may have left a function that holds `site`, at a test of the rank; "" if it did not."""
    others = {(frame.file, frame.function) for frame in _whereabouts(other, other_site)}
    known = frames_of(view, site)
    for number, frame in enumerate(known):
        note = note_at(view, frame)
        out = (frame.file, frame.function) not in others and _reach_out(other, known[number:])
        if note is not None and note.rank_exit and out:
            return f"{frame.function}(): {note.rank_exit}"
    return ""


def _reach_out(view: RankView, frames: Sequence[CallSite]) -> bool:
    """Say whether the frames of a rank go out as far as to one of these functions: what it is not in, it has left.

    They end at a signal handler, for one, not at what that has interrupted. Where no callers of the one function are
    known, none are asked for.
    """
    if len(frames) == 1 and frames[0].function != PROGRAM:
        return True
    there = {(frame.file, frame.function) for thread in view.threads for frame in thread.frames}
    return any((frame.file, frame.function) in there for frame in frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftLoop:
    """A loop that one side has left. `ways_out`: tests by which a rank leaves it, or skips work, on its own."""

    head: str
    ways_out: tuple[str, ...]

    @property
    def ends_by_itself(self) -> bool:
        """Whether it runs through data to its end, and every iteration does the same. Numbers are no data."""
        over_data = not _COUNTS.search(self.head) or "len(" in self.head
        return self.head.startswith(("for ", "async for ")) and over_data and not self.ways_out


def loop_left(view: RankView, site: CallSite | None, other: RankView, other_site: CallSite | None) -> LeftLoop | None:
    """Return the outermost loop that holds `site` on `view` and that the other rank is not in any more."""
    others = _whereabouts(other, other_site)
    found = None
    inner: list[str] = []  # conditional returns of the functions between the loop and the site
    known = frames_of(view, site)
    known = known if len(known) > 1 else _whereabouts(view, site)
    for number, frame in enumerate(known):
        note = note_at(view, frame)
        if note is None:
            continue
        first, last = note.loop_lines
        in_its_own_function = first <= frame.line <= last
        if not in_its_own_function:
            inner += note.early_exits
        is_out = not any(each.file == frame.file and first <= each.line <= last for each in others)
        if note.loop and is_out and _reach_out(other, known[number:]):
            found = LeftLoop(head=note.loop, ways_out=(*note.loop_escapes, *inner))
        if in_its_own_function:
            inner += note.early_exits
    return found


def ways_past(view: RankView, site: CallSite | None) -> tuple[str, ...]:
    """Return the tests by which a rank may leave an iteration before it comes to `site`, as "line: test: word"."""
    found: dict[str, None] = {}  # a return in a loop is both a way out of that and one past the call
    for frame in frames_of(view, site):
        note = note_at(view, frame)
        if note is not None:
            ways = (*note.loop_escapes, *note.early_exits)
            found |= dict.fromkeys(way for way in ways if _line_of(way) < frame.line)
    return tuple(found)


def _line_of(way: str) -> int:
    line, _, _ = way.partition(":")
    return int(line) if line.isdigit() else 0
