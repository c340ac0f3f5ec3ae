"""What do the source lines of two sides say about why they parted?

The agent reads the source on the node that has it; here its notes are compared. A note is evidence,
not proof: it chooses the name of the cause, never whether there is a hang.
"""

from ncclwatch.contract.model import CallSite, RankView, SourceNote

FRAMES_MAX = 8


def note_at(view: RankView, site: CallSite | None) -> SourceNote | None:
    """Return what is known of a call site on this rank's node."""
    return next((note for note in view.sources if note.site == site), None)


def frames_of(view: RankView, site: CallSite | None) -> tuple[CallSite, ...]:
    """Return the user's frames that lead to a call site, innermost first; the site alone if nobody looked."""
    for thread in view.threads:
        if site is not None and site in thread.frames:
            return thread.frames[thread.frames.index(site) :][:FRAMES_MAX]
    return (site,) if site is not None else ()


def rank_condition(view: RankView, site: CallSite | None, op: str) -> SourceNote | None:
    """Return the note of the frame that runs on some ranks only, because a test of the rank says so.

    Where the other branch makes the same call, all ranks make it: that is no one-sided call.
    """
    for frame in frames_of(view, site):
        note = note_at(view, frame)
        if note is not None and note.condition:
            return None if same_call_elsewhere(note, op) else note
    return None


def same_call_elsewhere(note: SourceNote, op: str) -> bool:
    """Say whether the branch not taken communicates too, in a way that could meet this operation."""
    stem = op.replace("_", "")
    return any(stem in call.replace("_", "").lower() for call in note.other_branch_ops)


def loop_left(view: RankView, site: CallSite | None, other: RankView, other_site: CallSite | None) -> SourceNote | None:
    """Return the outermost loop that holds `site` on `view` and that the other rank is not in any more."""
    others = frames_of(other, other_site)
    found = None
    for frame in frames_of(view, site):
        note = note_at(view, frame)
        if note is None or not note.loop:
            continue
        first, last = note.loop_lines
        if not any(each.file == frame.file and first <= each.line <= last for each in others):
            found = note
    return found


def ends_by_itself(note: SourceNote) -> bool:
    """Say whether a loop runs through a sequence to its end, with no conditional way out of it or past its body."""
    return note.loop.startswith(("for ", "async for ")) and not note.loop_escapes
