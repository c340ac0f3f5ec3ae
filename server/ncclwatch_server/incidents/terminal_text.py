"""Writes one incident as one block of plain text, for a tired person.

It goes to terminals and into files: a line of it ends where this module says, and what ranks have sent is escaped. Our
own typographic characters are written in ASCII, for terminals that have no others; those of names are kept.
"""

import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace

from ncclwatch.contract.model.rank import CallSite, StackFrame
from ncclwatch.contract.model.verdict import Culprit, Divergence, MergedStack
from ncclwatch.contract.stacks.ownership import is_users_by_path
from ncclwatch.contract.stacks.places import is_python
from ncclwatch.contract.words.cause_pages import slug_of
from ncclwatch.contract.words.printable import one_line
from ncclwatch.contract.words.text import group_words, ranks_words
from ncclwatch_server.evidence.stack_collection import where
from ncclwatch_server.incidents import aftermath
from ncclwatch_server.incidents.book import Incident

WIDTH = 100
WIDTH_MIN, WIDTH_MAX = 60, 160
BRIEF_LINES = 10
FRAMES_MAX = 12
STACKS_MAX = 8
PLACES_MAX = 8
EVIDENCE_MAX = 10
CULPRITS_MAX = 8
_INDENT = 12

_PLAIN = str.maketrans(
    {
        "\u2013": "-", "\u2014": "-", "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"',
        "\u2026": "...", "\u2192": "->", "\u00d7": "x", "\u2264": "<=", "\u2265": ">=", "\u00a0": " ",
    }
)  # fmt: skip


def brief(incident: Incident, width: int = WIDTH) -> list[str]:
    """Return what a person needs at once, in at most ten lines: the sentence, why, what to do, who, how certain.

    Of the explanation and the advice the first sentences are shown, as many as there is room for. Where not even the
    headline and the first sentence of the advice have room, the longer one of them ends early.
    """
    verdict = incident.verdict
    lines = _headline(incident, width)
    label = "one of" if verdict.one_of else "culprit"
    whom: list[str] = []
    if verdict.culprits:
        others = len(verdict.culprits) - 1
        more = f"; and {others} more rank{'s' if others > 1 else ''}" if others else ""
        whom = _field(label, _whom(verdict.culprits[0], verdict.summary) + more, width)
    last = [*_field("certainty", certainty(incident), width), *_field("more", f"ncclwatch report {incident.id}", width)]
    room = BRIEF_LINES - len(lines + whom + last)
    why, do = _fitting(sentences_of(verdict.explanation), sentences_of(verdict.advice), room, width)
    fix = _field("do", do, width)
    while sum(map(len, (lines, fix, whom, last))) > BRIEF_LINES:
        _end_earlier(max((lines, fix, whom), key=len), width)
    return [*lines, *_field("why", why, width), *fix, *whom, *last]


def _end_earlier(lines: list[str], width: int) -> None:
    """Take the last of several lines away, and show that there was more."""
    lines.pop()
    text = lines[-1].removesuffix(" ...")
    if len(text) > width - 4:
        text = text[: width - 3].rpartition(" ")[0]
    lines[-1] = f"{text} ..."


def _fitting(why: list[str], do: list[str], room: int, width: int) -> tuple[str, str]:
    """Return the first sentences of both that fit into so many lines; the first of the fix comes before any other."""
    shown = [0, 1]  # sentences of each
    order = (each for pair in itertools.zip_longest(why, do[1:]) for each in zip(range(2), pair, strict=True))
    for part, sentence in order:
        if sentence is None:
            continue
        shown[part] += 1
        texts = " ".join(why[: shown[0]]), " ".join(do[: shown[1]])
        if len(_field("why", texts[0], width)) + len(_field("do", texts[1], width)) > room:
            shown[part] -= 1
            break
    return " ".join(why[: shown[0]]), " ".join(do[: shown[1]])


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text of ours."""
    return [part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", text.strip()) if part]


def _headline(incident: Incident, width: int) -> list[str]:
    return textwrap.wrap(
        f"ncclwatch: {first_line(incident)}", width, subsequent_indent=" " * _INDENT, break_on_hyphens=False
    )


def first_line(incident: Incident) -> str:
    """Return the sentence that says it all."""
    return plain(f"{incident.verdict.severity.value.upper()} {incident.verdict.summary}")


def render(incident: Incident) -> str:
    """Return the whole block, with a newline at its end."""
    return "\n".join(lines_of(incident)) + "\n"


def lines_of(incident: Incident) -> list[str]:
    """Return the lines of the block."""
    verdict = incident.verdict
    lines = _headline(incident, WIDTH)
    lines += _field("why", verdict.explanation)
    lines += _field("do", verdict.advice)
    for culprit in verdict.culprits[:CULPRITS_MAX]:
        lines += _field("one of" if verdict.one_of else "culprit", who(culprit))
    if len(verdict.culprits) > CULPRITS_MAX:
        lines += _field("", f"and {len(verdict.culprits) - CULPRITS_MAX} more ranks")
    if verdict.victims:
        lines += _field("waiting", ranks_words(verdict.victims))
    # Where the histories parted at the very operation that hangs, all is said already.
    if verdict.first_divergence is not None and verdict.first_divergence.seq != verdict.seq:
        lines += _divergence(verdict.first_divergence)
    lines += _field("certainty", certainty(incident))
    facts = _facts(incident)
    for number, fact in enumerate(facts[:EVIDENCE_MAX]):
        lines += _field("" if number else "evidence", fact)
    places = where(incident.stacks)
    if len(places) > 1:  # of one place its stack tells more
        shown = "; ".join(f"{ranks_words(gang.ranks)} {gang.place.brief}" for gang in places[:PLACES_MAX])
        more = f"; and {len(places) - PLACES_MAX} more places" if len(places) > PLACES_MAX else ""
        lines += _field("where", shown + more)
    for stack in incident.stacks[:STACKS_MAX]:
        lines += _stack(stack)
    if len(incident.stacks) > STACKS_MAX:
        lines += _field("", f"and {len(incident.stacks) - STACKS_MAX} more stacks, in the report")
    lines += _field("restart", aftermath.words(incident))
    lines += _field("lost", "" if incident.open else aftermath.cost(incident, 0.0))
    lines += _field("incident", f"{incident.id} of job {incident.job}")
    lines += _field("cause", f"{verdict.cause.value}: `ncclwatch explain {slug_of(verdict.cause)}`")
    return lines


def _facts(incident: Incident) -> list[str]:
    """Return what was observed, one line for all ranks of which the same was."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for evidence in incident.verdict.evidence:
        ranks.setdefault((evidence.fact, evidence.source), []).append(evidence.rank)
    for rank, failure in incident.unseen:
        ranks.setdefault((f"no stack: {failure}", "py-spy"), []).append(rank)
    return [f"{ranks_words(who)}: {fact} ({source})" for (fact, source), who in ranks.items()]


def plain(text: str) -> str:
    """Return one printable line: what ranks send may hold terminal escapes, or worse."""
    return one_line(re.sub(r"\s+", " ", text.translate(_PLAIN)))


def _field(name: str, text: str, width: int = WIDTH) -> list[str]:
    """Return a labelled paragraph, nothing if there is nothing to say."""
    said = plain(text).strip()
    if not said:
        return []
    return textwrap.wrap(
        said,
        width,
        initial_indent=f"  {name}".ljust(_INDENT),
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )


def _whom(culprit: Culprit, headline: str) -> str:
    """Return who it is, without the line if the headline has it."""
    site = culprit.call_site
    known = site is not None and re.search(rf"{re.escape(site.place)}\b", headline) is not None
    return who(replace(culprit, call_site=None, doing="") if known else culprit)


def who(culprit: Culprit) -> str:
    """Return "rank 3, host node7, pid 4242, cuda:1, at /home/me/train.py:12 in train(): in barrier"."""
    where = [f"rank {culprit.rank}"]
    if culprit.host:
        where.append(f"host {culprit.host}")
    if culprit.pid:
        where.append(f"pid {culprit.pid}")
    if culprit.device:
        where.append(culprit.device)
    said = ", ".join(where)
    if culprit.call_site is not None:
        said += f", at {_place(culprit.call_site)}"
    return f"{said}: {culprit.doing}" if culprit.doing else said


def _place(site: CallSite | None) -> str:
    return f"{site.file}:{site.line} in {site.function}()" if site is not None else "an unknown line"


def _divergence(divergence: Divergence) -> Iterator[str]:
    where = group_words(divergence.group, divergence.group_title)
    yield from _field("diverged", f"number {divergence.seq} of {where}: {divergence.fact}")
    for side, op, site in (
        ("culprit", divergence.culprit_op, divergence.culprit_site),
        ("others", divergence.victim_op, divergence.victim_site),
    ):
        if op or site is not None:
            yield from _field("", f"{side}: {op or 'nothing'} at {_place(site)}")


def certainty(incident: Incident) -> str:
    verdict = incident.verdict
    if verdict.predicted:
        return "predicted: nothing hangs yet"
    if verdict.about:
        return f"{verdict.certainty.value}: reported by the ranks themselves; nothing hangs"
    if verdict.slowness is not None:
        return "nothing hangs: the job continues, and could be faster"
    explained, blocked = verdict.explained
    said = verdict.certainty.value + (", disputed by a second source" if verdict.disputed else "")
    if explained < blocked:  # ranks that have just come to wait are in neither number, so a whole is not claimed
        said += f", explains {explained} of {blocked} blocked ranks"
    return f"{said}; reported {incident.onset_to_open_s:.1f} s after the wait began"


def _stack(stack: MergedStack) -> Iterator[str]:
    yield from _field("stack", f"{ranks_words(stack.ranks)}, thread {stack.thread}, innermost first:")
    frames = stack.frames[:FRAMES_MAX]
    # The user's own lines are what the reader looks for: the deepest one is shown at any depth.
    deeper = [f for f in stack.frames[FRAMES_MAX:] if _is_users(f)]
    if deeper and not any(map(_is_users, frames)):
        frames = (*frames, deeper[0])
    for frame in frames:
        mark = ">" if _is_users(frame) else " "
        line = f":{frame.line}" if frame.line or is_python(frame) else ""
        text = plain(f"{frame.function} ({frame.file.rsplit('/site-packages/', 1)[-1]}{line})")
        room = WIDTH - _INDENT - 2
        if len(text) > room:
            text = "..." + text[3 - room :]
        yield f"{' ' * _INDENT}{mark} {text}"
    if len(stack.frames) > len(frames):
        yield f"{' ' * _INDENT}  ... {len(stack.frames) - len(frames)} more"


def _is_users(frame: StackFrame) -> bool:
    return is_python(frame) and is_users_by_path(frame.file)
