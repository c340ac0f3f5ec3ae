"""Says what a save is, how far it has come, and what was seen of it."""

from ncclwatch.contract.model.rank import RankView, SaveView
from ncclwatch.contract.model.verdict import Evidence
from ncclwatch.contract.words.text import bytes_words, seconds_words
from ncclwatch_server.judge.telling.evidence import source_evidence
from ncclwatch_server.judge.telling.words import at
from ncclwatch_server.judge.theory.case import Case, main_thread
from ncclwatch_server.judge.theory.waits.rank_standing import GONE_STATES

UNANSWERED_S = 5.0  # without an answer of its file system, before that is told
STILL_S = 3.0  # a file that cannot be written and has grown no further for so long
RATE_MIN = 1.0  # bytes per second; below, nothing moves
Saving = tuple[RankView, SaveView]


def saves_of(case: Case) -> list[Saving]:
    """Return the saves of all ranks of which it is known until when they were under way."""
    return [(view, save) for view in case.views.values() for save in view.saves if _is_known(view, save)]


def save_words(view: RankView) -> str:
    """Return what the save of a rank's main thread is and how far it has come, "" if it is in none."""
    thread = main_thread(view)
    save = next(
        (each for each in view.saves if thread is not None and each.tid == thread.tid and each.ended_s is None), None
    )
    if save is None:
        return ""
    words = call_words(save)
    if save.written_bytes >= 0:
        left_bytes = save.total_bytes - save.written_bytes
        total = _total_words(save) if left_bytes > 0 else ""
        words += f": {bytes_words(save.written_bytes)}{total} written"
        if save.bytes_per_s >= RATE_MIN and save.still_s < STILL_S:
            words += f", {bytes_words(save.bytes_per_s)}/s"
            if left_bytes > 0:
                words += f", {seconds_words(left_bytes / save.bytes_per_s)} to go at that rate"
        elif save.still_s >= STILL_S:
            words += f", none for {seconds_words(save.still_s)}"
    if save.refused:
        words += f" ({save.refused})"
    elif save.unanswered_s >= UNANSWERED_S:
        words += f" (its file system has not answered for {seconds_words(save.unanswered_s)})"
    return words


def _total_words(save: SaveView) -> str:
    """Return of how many bytes a save has written some: those of its tensors, or those of the last one like it."""
    return f" of {bytes_words(save.total_bytes)}{', as the last one had,' * save.as_before}"


def _is_known(view: RankView, save: SaveView) -> bool:
    """Say whether it is known until when a save was under way: one that death has broken off ended some time before."""
    return save.ended_s is not None or (view.ending is None and view.process.state not in GONE_STATES)


def call_words(save: SaveView) -> str:
    """Return what a save calls, and where to."""
    return f"{save.call} to {save.path}" if save.path else save.call


def save_evidence(saves: list[Saving]) -> tuple[Evidence, ...]:
    """Return what was seen of saves and of their files."""
    facts = []
    for view, save in saves[:16]:
        ended = f", ended {seconds_words(save.ended_s)} ago" if save.ended_s is not None else ", under way"
        raised = f", raised {save.error}" if save.error else ""
        began = f"{call_words(save)}{at(save.site)} began {seconds_words(save.began_s)} ago{ended}{raised}"
        facts.append(Evidence(source="ring", rank=view.rank, fact=began))
        if save.file or save.inode:
            kind = f" on {save.filesystem}" if save.filesystem else ""
            fact = f"file {save.file or save.path}, inode {save.inode}{kind}"
            facts.append(Evidence(source="proc", rank=view.rank, fact=fact))
        facts += source_evidence(view, save.site)
    return tuple(facts)
