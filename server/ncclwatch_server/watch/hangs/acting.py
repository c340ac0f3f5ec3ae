"""Tells agents of the hangs of a job whose owner wants them to act on hangs. What is done, they decide.

A server sends the whole picture whenever it changes, so that a connection that broke costs nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.on_hang.decision import Hang, settled_s
from ncclwatch.contract.on_hang.hangs import HANGS_MAX, Hangs, HookFacts, Hooks, OpenHang, encode
from ncclwatch.contract.on_hang.hook import CULPRITS_MAX, NAME_CHARS_MAX
from ncclwatch.contract.on_hang.notice import TEXT_CHARS_MAX
from ncclwatch.contract.wire import CommandKind
from ncclwatch_server.incidents.aftermath import hang_of, is_hang
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState
from ncclwatch_server.incidents.report import report_incident
from ncclwatch_server.jobs.job import Job

Captured = Callable[[Incident], str | None]


def tell_agents(job: Job, book: IncidentBook, now: float, captured: Captured) -> None:
    """Send the hangs of a job to those of its agents that act, where there is news for them.

    `now` is monotonic: for how long a hang has stood decides what is done, and a wall clock may be set.
    `captured` says in words where the capture of a hang is, None while it is being written: they hear of it then.
    """
    acting = {number: served for number, served in job.served.items() if served.acts and served.alive}
    if acting or job.hangs_since:
        open_hangs = [each.id for each in book.open_of(job.key) if is_hang(each)]
        job.hangs_since = {each: job.hangs_since.get(each, now) for each in open_hangs}
    if not acting:
        return
    found = hangs_of(job, book.all(), now, captured)
    told = {number: known for number, known in job.hangs_told.items() if number in acting}
    for number, served in acting.items():
        hangs = replace(found, hooks=_hooks(job, book, served.link.agent, found))
        picture = _lasting(hangs)
        if told.get(number, Hangs()) != picture:
            served.link.command(CommandKind.HANGS, served.index, text=encode(hangs))
        told[number] = picture
    job.hangs_told = told


def hangs_of(job: Job, incidents: Iterable[Incident], now: float, captured: Captured) -> Hangs:
    """Return the hangs of a job that stand and of which no more is to be learned, and those of its former attempts."""
    standing: list[OpenHang] = []
    before: list[tuple[int, Hang]] = []
    for incident in incidents:
        key, verdict = incident.key, incident.verdict
        if (key.name, key.instance) != (job.key.name, job.key.instance) or not is_hang(incident):
            continue
        if key.attempt < job.key.attempt and key.run == job.key.run:
            if incident.state is IncidentState.RESOLVED or verdict.cause is Cause.RANK_CRASHED:
                continue  # nothing was started again for it, or torchrun did so by itself
            before.append((key.attempt, hang_of(incident)))
        elif key == job.key and incident.open:
            stands_s = now - job.hangs_since.get(incident.id, now)
            settled = stands_s >= settled_s(verdict.cause.value, one_of=verdict.one_of, seen=bool(incident.stacks))
            capture = captured(incident) if settled else None
            if capture is not None:
                standing.append(
                    OpenHang(
                        incident=incident.id,
                        hang=hang_of(incident),
                        stands_s=stands_s,
                        capture=capture,
                        sentence=verdict.summary[:TEXT_CHARS_MAX],
                        advice=verdict.advice[:TEXT_CHARS_MAX],
                    )
                )
    before.sort(key=lambda each: each[0])
    attempts = len({attempt for attempt, _ in before})
    return Hangs(
        open=tuple(standing[-HANGS_MAX:]), before=tuple(hang for _, hang in before)[-HANGS_MAX:], attempts=attempts
    )


def _lasting(hangs: Hangs) -> Hangs:
    """Return a picture without what changes by itself, and of a hang whose hook runs here already."""
    hooks = hangs.hooks
    if hooks is not None:
        hooks = replace(hooks, granted=tuple(HookFacts(incident=each.incident) for each in hooks.granted))
    return replace(hangs, open=tuple(replace(each, stands_s=0.0) for each in hangs.open), hooks=hooks)


def _hooks(job: Job, book: IncidentBook, agent: str, hangs: Hangs) -> Hooks | None:
    """Return which hooks of open hangs an agent runs, and which it may wait for."""
    standing = [each.incident for each in hangs.open]
    if not standing:
        return None
    granted = (book.get(each) for each in job.hooks.granted(agent, standing))
    return Hooks(
        granted=tuple(_facts(job, incident) for incident in granted if incident is not None),
        taken=job.hooks.taken(agent, standing),
        over=job.hooks.over(standing),
    )


def _facts(job: Job, incident: Incident) -> HookFacts:
    report, kept = report_incident(incident), job.kept_captures.get(incident.id)
    return HookFacts(
        incident=incident.id,
        culprits=tuple(replace(each, doing=each.doing[:NAME_CHARS_MAX]) for each in report.culprits[:CULPRITS_MAX]),
        one_of=report.one_of,
        opened_at=report.opened_at,
        capture=kept.place if kept is not None else "",
    )
