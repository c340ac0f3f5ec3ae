"""Ranks that others wait for and that are in no operation: stopped, still, or merely at work?

Stillness is told from outside (CPU time, I/O, process state) and from inside (the Python stack, the
pulse that needs the GIL). A rank that shows any sign of work is late and never a hang.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ncclwatch.contract.model import (
    CallSite,
    Cause,
    Certainty,
    Evidence,
    ProcessState,
    RankView,
    Severity,
    ThreadView,
    Verdict,
    WaitKind,
)
from ncclwatch.contract.ownership import is_users_by_path
from ncclwatch.contract.text import ADVICE, ADVICE_GIL, WAIT_WORDS, ranks_words, seconds_words
from ncclwatch_server.judge.case import (
    Case,
    at,
    block_evidence,
    counts_words,
    culprit,
    explained,
    main_thread,
    onset_s,
    source_evidence,
    waiting_words,
)
from ncclwatch_server.judge.devices import may_wait_on_device
from ncclwatch_server.judge.graph import victims_of
from ncclwatch_server.judge.sides import uneven_counts
from ncclwatch_server.judge.source import note_at
from ncclwatch_server.judge.standing import FROZEN_STATES, Block, Standing

STILL_S = 6.0  # without CPU, I/O or a change of the stack, before a rank counts as stalled
STILL_IN_IO_S = 7.0  # the same where waiting for a disk or a network is the rank's very work
STILL_ASLEEP_S = 9.0  # in a sleep of its own choice: a pause between two tries
STILL_FOR_ANSWER_S = 30.0  # in a read from another process: a service may take its time, and its work is not seen here
STOPPED_S = 2.0  # in state T
GIL_STILL_S = 5.0  # without a pulse, and without CPU
LEARNED_FACTOR = 2.0  # a job that has recovered from a wait gets this much of it as patience
LEARNED_S_MAX = 60.0
LATE_WARNING_S_MIN = 60.0
LATE_OF_TIMEOUT = 0.5  # share of the group's timeout after which a late rank is warned of
PULSE_LOST_S = 3.0
SIGNS_MIN = 2  # of stillness, each seen in another way
_OWN_TROUBLE = (Cause.PROCESS_FROZEN, Cause.DATA_STALL, Cause.STUCK_SAVE, Cause.SWALLOWED_EXCEPTION)
_ANSWERS = frozenset("recvfrom recvmsg accept poll ppoll select pselect6 epoll_wait epoll_pwait connect".split())
_SOCKETS = ("wait_woken", "sk_wait", "unix_stream", "tcp_")  # where a read() from a socket sits
_ASKS_FOR_FILES = re.compile(r"^while .*\b(exists|is_file|isfile|is_dir|isdir|stat|glob|listdir|iterdir)\(")
_SLEEPS = frozenset(("clock_nanosleep", "nanosleep", "pause"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stillness:
    """Why a rank outside all operations counts as stalled."""

    cause: Cause
    what: str
    patience_s: float
    still_s: float
    advice: str = ""  # where more is known than the cause


def outsiders(case: Case) -> tuple[Verdict, ...]:
    """Judge ranks that keep others waiting without being in an operation themselves."""
    wanted = {
        rank
        for blocked in case.blocked
        for block in case.graph.blocks[blocked]
        for rank in (*case.graph.absent[block.operation], *_frozen_members(case, block))
    }
    ranks = [rank for rank in sorted(wanted) if case.found[rank].standing in (Standing.OUTSIDE, Standing.FROZEN)]
    found = [(rank, stillness(case, case.views[rank])) for rank in ranks]
    stalled = [(rank, still) for rank, still in found if still is not None and still.still_s >= still.patience_s]
    if any(_works(case.views[rank]) for rank in ranks):
        stalled = [(rank, still) for rank, still in stalled if not _may_wait_for_another(case.views[rank], still)]
    if stalled:
        worst = _worst(stalled)
        return (_stalled(case, [rank for rank, still in stalled if still.cause is worst.cause], worst),)
    return (_late(case, ranks),) if ranks else ()


def _works(view: RankView) -> bool:
    """Say whether a rank shows a sign of work that is not that of a host which waits for its device."""
    thread = main_thread(view)
    return min(_signs(view), default=1.0) == 0 and not (thread is not None and may_wait_on_device(view, thread))


def _may_wait_for_another(view: RankView, still: Stillness) -> bool:
    """Say whether a rank that stands still may wait, by means that nobody records, for one that is at work.

    One rank of a node downloads what the others of the node look for, and all meet in a barrier afterwards.
    """
    pulse_lost = view.pulse_age_s >= PULSE_LOST_S
    return still.cause not in _OWN_TROUBLE and not pulse_lost and view.process.state is not ProcessState.DISK_WAIT


def _worst(stalled: list[tuple[int, Stillness]]) -> Stillness:
    order = (Cause.PROCESS_FROZEN, Cause.SWALLOWED_EXCEPTION, Cause.UNEVEN_BATCHES)
    found = [still for _, still in stalled]
    return min(found, key=lambda s: order.index(s.cause) if s.cause in order else len(order))


def _frozen_members(case: Case, block: Block) -> tuple[int, ...]:
    """Return members that have entered an operation and were stopped inside: it cannot go on without them."""
    return tuple(
        rank for rank in block.operation.members if rank in case.found and case.found[rank].standing is Standing.FROZEN
    )


def stillness(case: Case, view: RankView) -> Stillness | None:
    """Return in what way a rank stands still, or None if it works or nobody can tell."""
    process, thread = view.process, main_thread(view)
    if process.state in FROZEN_STATES:
        how = "a debugger holds it" if process.state is ProcessState.TRACED else "it was stopped (SIGSTOP)"
        return Stillness(cause=Cause.PROCESS_FROZEN, what=how, patience_s=STOPPED_S, still_s=_observed_still_s(view))
    if thread is not None and may_wait_on_device(view, thread):
        return None
    kind = thread.wait.kind if thread is not None and thread.wait is not None else None
    signs = _signs(view)
    still_s = min(signs, default=0.0)
    if still_s <= 0 or len(signs) < SIGNS_MIN or (thread is None and view.attached):
        return None
    if view.pulse_age_s >= PULSE_LOST_S:
        return Stillness(
            cause=_cause_by_place(kind),
            what=_pulse_words(view, kind),
            patience_s=GIL_STILL_S,
            still_s=still_s,
            advice="" if process.state is ProcessState.DISK_WAIT else ADVICE_GIL,
        )
    patience = _patience_s(case, kind, thread.in_kernel if thread is not None else "")
    return Stillness(
        cause=_cause_of(case, view, thread, kind),
        what=_still_words(view, thread, kind),
        patience_s=patience,
        still_s=still_s,
    )


def _signs(view: RankView) -> tuple[float, ...]:
    """Return for how long each thing that is known of a rank has shown no work, in seconds; 0: it works.

    CPU time and bytes are seen from outside, the stack from inside; where the pulse has stopped, nobody inside looks
    any more, and that is a sign itself.
    """
    process, thread = view.process, main_thread(view)
    found = [process.cpu_still_s]
    if not process.io_unknown:
        found.append(process.io_still_s)
    if view.pulse_age_s >= PULSE_LOST_S:
        found.append(view.pulse_age_s)
    elif view.attached and thread is not None and thread.leaf:
        found.append(thread.same_s)
    return tuple(found)


def _observed_still_s(view: RankView) -> float:
    return max(view.process.cpu_still_s, view.pulse_age_s)


def _patience_s(case: Case, kind: WaitKind | None, in_kernel: str) -> float:
    call = in_kernel.partition(" ")[0]
    if kind in (WaitKind.DATA, WaitKind.SAVE):
        base = STILL_IN_IO_S
    elif kind is not None:  # a wait that torch makes, on the rendezvous store
        base = STILL_S
    elif call in _ANSWERS or (call == "read" and any(word in in_kernel for word in _SOCKETS)):
        base = STILL_FOR_ANSWER_S
    else:
        base = STILL_ASLEEP_S if call in _SLEEPS else STILL_S
    return max(base, min(LEARNED_FACTOR * case.snapshot.longest_still_s, LEARNED_S_MAX))


def _cause_by_place(kind: WaitKind | None) -> Cause:
    if kind is WaitKind.DATA:
        return Cause.DATA_STALL
    return Cause.STUCK_SAVE if kind is WaitKind.SAVE else Cause.HOST_STALL


def _cause_of(case: Case, view: RankView, thread: ThreadView | None, kind: WaitKind | None) -> Cause:
    if (thread is not None and thread.exception) or _went_on_after_exception(view):
        return Cause.SWALLOWED_EXCEPTION
    if _rendezvous(case):
        return Cause.INIT_INCOMPLETE
    if kind in (WaitKind.DATA, WaitKind.SAVE):
        return _cause_by_place(kind)
    note = note_at(view, _place(case, view))
    if note is not None and _ASKS_FOR_FILES.search(note.loop):
        return Cause.FILESYSTEM_VIEW
    others = tuple(rank for rank in case.blocked if rank in case.views)
    if uneven_counts(case.views, (view.rank,), others) is not None:
        return Cause.UNEVEN_BATCHES
    return Cause.HOST_STALL


def _went_on_after_exception(view: RankView) -> bool:
    """Say whether the newest exception came after this rank's newest operation."""
    newest_s = view.history[-1].age_s if view.history else float("inf")
    return bool(view.last_exception) and view.last_exception_s <= newest_s


def _rendezvous(case: Case) -> bool:
    return any(
        block.operation.kind in (WaitKind.INIT, WaitKind.NEW_GROUP)
        for rank in case.blocked
        for block in case.graph.blocks[rank]
    )


def _pulse_words(view: RankView, kind: WaitKind | None) -> str:
    inside = f" in {WAIT_WORDS[kind]}" if kind is not None and kind in WAIT_WORDS else ""
    if view.process.state is ProcessState.DISK_WAIT:
        return f"it is in uninterruptible sleep (state D){inside}"
    return f"native code holds the GIL{inside}, without using CPU, so no Python thread of it can run"


def _still_words(view: RankView, thread: ThreadView | None, kind: WaitKind | None) -> str:
    if view.process.state is ProcessState.DISK_WAIT:
        return "it is in uninterruptible sleep (state D)"
    if not view.attached:
        return "it has not come to ncclwatch.attach() yet and shows no sign of work"
    if thread is not None and thread.exception:
        return f"it handles {thread.exception} and does not come back"
    if view.process.lock_holder:
        return f"it waits for the lock on {view.process.lock_path or 'a file'}, held by pid {view.process.lock_holder}"
    if kind is not None and kind in WAIT_WORDS:
        return f"it stands in {WAIT_WORDS[kind]}"
    return "it is outside every collective and shows no sign of work"


def _place(case: Case, view: RankView) -> CallSite | None:
    """Return the user's line a rank stands at, by who saw it last: py-spy, the pulse, the wait, the last operation."""
    thread = main_thread(view)
    waits_at = thread.wait.site if thread is not None and thread.wait is not None else None
    doing = thread.doing if thread is not None else None
    # Where the pulse cannot look, only py-spy can.
    if view.pulse_age_s >= PULSE_LOST_S or view.process.state in FROZEN_STATES:
        return _place_in_stacks(case, view) or waits_at or doing or _last_site(view)
    return doing or waits_at or _last_site(view)


def _place_in_stacks(case: Case, view: RankView) -> CallSite | None:
    dump = case.snapshot.stacks.get(view.rank)
    for name, frames in dump.threads if dump is not None else ():
        if name == "MainThread":
            for frame in frames:
                if frame.line > 0 and is_users_by_path(frame.file):  # py-spy shows a frame it could not read as line 0
                    return CallSite(file=frame.file, line=frame.line, function=frame.function)
    return None


def _last_site(view: RankView) -> CallSite | None:
    return view.history[-1].site if view.history else None


def _stalled(case: Case, ranks: list[int], why: Stillness) -> Verdict:
    victims = tuple(rank for rank in victims_of(case.graph, ranks) if rank not in ranks)
    blocks = [block for rank in victims for block in case.found[rank].blocks]
    view = case.views[ranks[0]]
    site = _place(case, view)
    hosts = "" if len({v.host for v in case.views.values()}) == 1 else f" on {view.host}"
    return Verdict(
        cause=why.cause,
        certainty=Certainty.STALLED,
        severity=Severity.CRITICAL,
        summary=(
            f"{ranks_words(ranks)}{hosts} {_stalled_words(why, site, len(ranks))}; {waiting_words(case.views, blocks)}."
        ),
        explanation=_stalled_explanation(case, view, why, victims),
        advice=(why.advice or ADVICE[why.cause]).replace("<pid>", str(view.pid)),
        culprits=tuple(
            culprit(case.views[rank], _place(case, case.views[rank]), _words_of(case, case.views[rank]))
            for rank in ranks
        ),
        victims=victims,
        group=blocks[0].operation.group if blocks else "",
        seq=blocks[0].operation.seq if blocks else 0,
        op=blocks[0].wait.op.value if blocks else "",
        onset_s=onset_s(blocks),
        still_s=why.still_s,
        explained=explained(case, victims),
        evidence=_evidence(case, ranks, blocks),
    )


def _words_of(case: Case, view: RankView) -> str:
    found = stillness(case, view)
    return found.what.removeprefix("it ") if found is not None else ""


def _stalled_words(why: Stillness, site: CallSite | None, count: int) -> str:
    many = count > 1
    if why.cause is Cause.PROCESS_FROZEN:
        return f"{'are' if many else 'is'} stopped{at(site)}: {why.what}"
    return f"{'stand' if many else 'stands'} still{at(site)} for {seconds_words(why.still_s)}: {why.what}"


def _stalled_explanation(case: Case, view: RankView, why: Stillness, victims: tuple[int, ...]) -> str:
    parts = [
        f"{ranks_words(victims).capitalize()} cannot finish without rank {view.rank}, and it stands still: "
        f"no CPU for {seconds_words(view.process.cpu_still_s)}, process {view.process.state.value}"
        + (f", pulse {seconds_words(view.pulse_age_s)} ago." if view.attached else ".")
    ]
    if why.cause is Cause.UNEVEN_BATCHES:
        counts = uneven_counts(case.views, (view.rank,), tuple(r for r in victims if r in case.views))
        parts.append(f"Batches drawn in this epoch: {counts_words(counts)}." if counts else "")
    if why.cause is Cause.SWALLOWED_EXCEPTION:
        thread = main_thread(view)
        text = (thread.exception if thread else "") or view.last_exception
        site = (thread.exception_site if thread else None) or view.last_exception_site
        parts.append(f"It caught {text}{at(site)} and went its own way; the others know nothing of it.")
    return " ".join(part for part in parts if part)


def _late(case: Case, ranks: list[int]) -> Verdict:
    victims = tuple(rank for rank in victims_of(case.graph, ranks) if rank not in ranks)
    blocks = [block for rank in victims for block in case.found[rank].blocks]
    waited_s = onset_s(blocks)
    view = case.views[ranks[0]]
    limit = view.timeout_s * LATE_OF_TIMEOUT
    overdue = waited_s > max(LATE_WARNING_S_MIN, 3 * case.snapshot.longest_wait_s) or 0 < limit < waited_s
    site = _place(case, view)
    phase = f" in phase {view.phase}" if view.phase else ""
    return Verdict(
        cause=Cause.STRAGGLER,
        certainty=Certainty.LATE,
        severity=Severity.WARNING if overdue else Severity.INFO,
        summary=(
            f"waiting for {ranks_words(ranks)}:{at(site) or ' outside every collective'}{phase}, "
            f"{seconds_words(waited_s)}, {_late_words(case, ranks)}"
        ),
        explanation=(
            f"{ranks_words(victims).capitalize()} {'waits' if len(victims) == 1 else 'wait'} for {ranks_words(ranks)}, "
            f"{_late_words(case, ranks)}."
            + (f" The group's timeout ends the job after {seconds_words(view.timeout_s)}." if view.timeout_s else "")
        ),
        advice=ADVICE[Cause.STRAGGLER],
        culprits=tuple(
            culprit(case.views[rank], _place(case, case.views[rank]), _late_words(case, [rank])) for rank in ranks
        ),
        victims=victims,
        group=blocks[0].operation.group if blocks else "",
        seq=blocks[0].operation.seq if blocks else 0,
        op=blocks[0].wait.op.value if blocks else "",
        onset_s=waited_s,
        still_s=_still_s(case, ranks),
        explained=explained(case, victims),
        evidence=_evidence(case, ranks, blocks),
    )


def _still_s(case: Case, ranks: list[int]) -> float:
    """Return for how long all of these ranks have stood still, 0 if one of them works."""
    found = [stillness(case, case.views[rank]) for rank in ranks]
    return min((still.still_s if still is not None else 0.0 for still in found), default=0.0)


def _late_words(case: Case, ranks: list[int]) -> str:
    still_s = _still_s(case, ranks)
    return f"no sign of work for {seconds_words(still_s)}" if still_s else "working"


def _evidence(case: Case, ranks: Iterable[int], blocks: list[Block]) -> tuple[Evidence, ...]:
    facts = []
    for rank in ranks:
        view = case.views[rank]
        process, thread = view.process, main_thread(view)
        inside = f" in {process.in_kernel}" if process.in_kernel else ""
        facts.append(
            Evidence(
                source="proc",
                rank=rank,
                fact=f"process {process.state.value}{inside}, no CPU for {seconds_words(process.cpu_still_s)}, "
                f"no I/O for {'an unknown time' if process.io_unknown else seconds_words(process.io_still_s)}",
            )
        )
        if thread is not None and thread.leaf:
            facts.append(
                Evidence(
                    source="ring",
                    rank=rank,
                    fact=f"innermost frame {thread.leaf}, the same for {seconds_words(thread.same_s)}",
                )
            )
        facts += source_evidence(view, _place(case, view))
    return tuple(facts + [block_evidence(block) for block in blocks[:16]])
