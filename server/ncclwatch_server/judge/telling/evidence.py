"""Says what was seen of ranks: culprits with their place, and facts with their source."""

from ncclwatch.contract.model.rank import CallSite, ProcessState, RankView
from ncclwatch.contract.model.verdict import Culprit, Evidence
from ncclwatch.contract.words.text import seconds_words
from ncclwatch_server.judge.telling.words import at, wait_words
from ncclwatch_server.judge.theory.histories.lines.call_sites import frames_of, note_at
from ncclwatch_server.judge.theory.waits.group_identity import name_of
from ncclwatch_server.judge.theory.waits.rank_standing import Block


def culprit(view: RankView, site: CallSite | None, doing: str) -> Culprit:
    """Return a culprit with what is known of its place."""
    return Culprit(
        rank=view.rank,
        host=view.host,
        pid=view.pid,
        device=view.device,
        call_site=site,
        doing=doing,
        traced=view.process.state is ProcessState.TRACED,
    )


def block_evidence(block: Block) -> Evidence:
    """Return what a blocked rank's ring says."""
    where = f" #{block.wait.seq} of group {name_of(block.wait.group)}" if block.wait.group else ""
    fact = f"in {wait_words(block.wait)}{where}{at(block.wait.site)} for {seconds_words(block.wait.age_s)}"
    return Evidence(source="ring", rank=block.rank, fact=fact)


def source_evidence(view: RankView, site: CallSite | None) -> list[Evidence]:
    """Return the source lines that lead to a site and what tests of the rank enclose them."""
    facts = []
    for frame in frames_of(view, site)[:3]:
        note = note_at(view, frame)
        if note is not None and note.text:
            under = f" (under `{note.condition}`)" if note.condition else ""
            facts.append(Evidence(source="source", rank=view.rank, fact=f"{frame}: {note.text}{under}"))
    return facts
