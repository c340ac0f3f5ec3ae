"""Reads what a process does: where its threads stand, and how it ended."""

import dataclasses
from collections.abc import Mapping

from ncclwatch.contract.model.job import Contact
from ncclwatch.contract.model.phases import Phase
from ncclwatch.contract.model.rank import (
    ChildStack,
    EndedThread,
    Ending,
    LockFile,
    ProcessState,
    SourceNote,
    StackDump,
    ThreadView,
    TimedWait,
    WaitKind,
    WaitView,
)
from tests.scenarios.situation.state import Command, State
from tests.scenarios.situation.words import frame_of, options_of, ranks_of, site_of


def host(state: State, words: list[str]) -> None:
    names, site, *rest = words
    found = options_of(rest)
    age_s = float(found["for"])
    cpu_still_s = 0.0 if "spins" in found else age_s
    for rank in ranks_of(names):
        place = site_of(site)
        wait = WaitView(kind=WaitKind(found["in"]), age_s=age_s, site=place) if "in" in found else None
        issued = state.ranks[rank].history[-1]
        if wait is not None and wait.kind is WaitKind.COLLECTIVE:
            wait = dataclasses.replace(wait, group=issued.group, seq=issued.seq, op=issued.op, site=issued.site)
        state.main(
            rank, wait=wait, doing=place, frames=(place,), leaf=f"step {site}", calling=found.get("calling", ""),
            same_s=age_s, cpu_still_s=cpu_still_s,
        )  # fmt: skip
        state.process(rank, cpu_still_s=cpu_still_s, io_still_s=age_s)


def at(state: State, words: list[str]) -> None:
    found = options_of(words[2:])
    site, still_s = site_of(words[1]), float(found.get("still", "0"))
    kind = {"data": WaitKind.DATA, "save": WaitKind.SAVE}.get(found.get("in", ""))
    for rank in ranks_of(words[0]):
        wait = WaitView(kind=kind, age_s=still_s, site=site) if kind else None
        state.main(
            rank, wait=wait, doing=site, frames=(site,), leaf=f"read {words[1]}", same_s=still_s, cpu_still_s=still_s
        )
        io_s = float(found.get("io", str(still_s)))
        state.process(rank, cpu_still_s=float(found.get("cpu", str(still_s))), io_still_s=io_s)


def stopped(state: State, words: list[str]) -> None:
    age_s = float(options_of(words[1:])["for"])
    for rank in ranks_of(words[0]):
        state.process(rank, state=ProcessState.STOPPED, cpu_still_s=age_s, io_still_s=age_s)
        state.change(rank, pulse_age_s=age_s)


def gil(state: State, words: list[str]) -> None:
    found = options_of(words[1:])
    age_s = float(found["for"])
    for rank in ranks_of(words[0]):
        state.change(rank, pulse_age_s=age_s)
        cpu_s = 0.0 if "busy" in found else float(found.get("cpu", age_s))
        state.process(rank, cpu_still_s=cpu_s, io_still_s=float(found.get("io", age_s)))


def disk(state: State, words: list[str]) -> None:
    age_s = float(options_of(words[2:])["for"])
    at(state, [words[0], words[1], "still", str(age_s)])
    for rank in ranks_of(words[0]):
        state.process(rank, state=ProcessState.DISK_WAIT)


def ended(state: State, words: list[str]) -> None:
    names, how, *rest = words
    value = "" if how == "unseen" else rest.pop(0)
    site = site_of(rest.pop(0)) if how == "error" and rest and ":" in rest[0] else None
    found = options_of(rest)
    ago_s = float(found.get("ago", "0"))
    ending = {
        "exit": lambda: Ending(kind="exited" if value == "0" else "crashed", exit_code=int(value), age_s=ago_s),
        "unseen": lambda: Ending(kind="vanished", age_s=ago_s),
        "signal": lambda: Ending(kind="signalled", signal=int(value), age_s=ago_s),
        "error": lambda: Ending(kind="crashed", exit_code=1, exception=value, site=site, age_s=ago_s),
    }[how]()
    if "by" in found:
        ending = dataclasses.replace(ending, kind="signalled", exit_code=None, signal=int(found["by"]))
    for rank in ranks_of(names):
        state.change(rank, ending=ending)
        state.process(rank, state=ProcessState.GONE)


def leaving(state: State, words: list[str]) -> None:
    """leaving RANKS for S: they have left their programs well, and their processes are there still."""
    age_s = float(options_of(words[1:])["for"])
    for rank in ranks_of(words[0]):
        state.change(rank, ending=Ending(kind="exited", age_s=age_s), pulse_age_s=age_s)
        state.process(rank, state=ProcessState.SLEEPING, cpu_still_s=age_s, io_still_s=age_s)


def handling(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.main(rank, exception=words[1], exception_site=site_of("train.py:30"))
        if "noted" in words:
            state.change(rank, last_exception=words[1], last_exception_s=float(words[-1]))


def caught(state: State, words: list[str]) -> None:
    """caught RANKS "Type: text" S: handled so long ago, and no more."""
    for rank in ranks_of(words[0]):
        state.change(rank, last_exception=words[1], last_exception_s=float(words[2]))


def over(state: State, words: list[str]) -> None:
    """over RANKS for S: their program is over, and the interpreter waits for a thread."""
    still_s = float(options_of(words[1:])["for"])
    for rank in ranks_of(words[0]):
        leaf = "_shutdown /usr/lib/python3.11/threading.py:1583"
        state.main(rank, leaf=leaf, same_s=still_s, cpu_still_s=still_s)
        state.process(rank, cpu_still_s=still_s, io_still_s=still_s)


def frames(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.main(rank, frames=tuple(site_of(text) for text in words[1:]))


def refused(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.process(rank, io_unknown=True, io_still_s=0.0)


def sampled(state: State, words: list[str]) -> None:
    found = options_of(words[1:])
    for rank in ranks_of(words[0]):
        state.main(rank, leaf=f"{found.get('in', 'step')} train.py:1", same_s=float(found["same"]))


def seen(state: State, words: list[str]) -> None:
    taken_s = float(options_of(words[2:]).get("taken", "0"))
    for rank in ranks_of(words[0]):
        state.change(rank, news_age_s=float(words[1]), taken_s=taken_s)


def thread(state: State, words: list[str]) -> None:
    """thread RANKS issued N still S [in CALL]: a second thread, and the system call that it is in."""
    found = options_of(words[1:])
    still_s = float(found.get("still", "0"))
    for rank in ranks_of(words[0]):
        thread = ThreadView(
            tid=2000 + rank,
            main=False,
            issued=int(found["issued"]),
            same_s=still_s,
            cpu_still_s=still_s,
            in_kernel=found.get("in", ""),
        )
        state.change(rank, threads=(*state.ranks[rank].threads, thread))


def names(state: State, words: list[str]) -> None:
    """names RANKS NAME NAME: the main thread and a second one, "-" for one that Python has no name for."""
    for rank in ranks_of(words[0]):
        state.main(rank, name=words[1])
        second = ThreadView(tid=2000 + rank, main=False, issued=10, name=words[2].strip("-"), alive=True)
        state.change(rank, threads=(*state.ranks[rank].threads, second))
        state.change(rank, threads=tuple(dataclasses.replace(t, same_s=9.0, cpu_still_s=9.0) for t in
                                         state.ranks[rank].threads))  # fmt: skip


def standing(state: State, words: list[str]) -> None:
    """standing RANKS "FUNCTION FILE:LINE": the innermost frame of all, which is none of the user's."""
    for rank in ranks_of(words[0]):
        state.main(rank, leaf=words[1], doing=None, frames=())


def child(state: State, words: list[str]) -> None:
    """child RANKS PID stopped | killed N: what is wrong with a process that they have started."""
    pid, how, *number = words[1:]
    for rank in ranks_of(words[0]):
        if how == "stopped":
            state.process(rank, stopped_child=int(pid))
        else:
            state.process(rank, killed_child=int(pid), killed_by=int(number[0]))


def lost_thread(state: State, words: list[str]) -> None:
    """lost_thread RANKS NAME "Type: text" SITE ago S: an exception ended a thread of theirs, the one of that name."""
    ended = EndedThread(
        name=words[1], exception=words[2], site=site_of(words[3]), age_s=float(options_of(words[4:])["ago"])
    )
    for rank in ranks_of(words[0]):
        threads = state.ranks[rank].threads
        state.change(
            rank,
            ended_thread=ended,
            threads=tuple(dataclasses.replace(each, alive=each.name != ended.name) for each in threads),
        )


def answer(state: State, words: list[str]) -> None:
    """answer RANKS: a thread beside the main one receives from a socket."""
    for rank in ranks_of(words[0]):
        state.process(rank, awaits_answer=True)


def kernel(state: State, words: list[str]) -> None:
    """kernel RANKS PLACE: where the main thread sits in the kernel."""
    for rank in ranks_of(words[0]):
        state.main(rank, in_kernel=words[1])


def lock(state: State, words: list[str]) -> None:
    """lock RANK HOLDER PATH SITE for|polled S: waits for a file lock that another process holds (a rank, or "pid")."""
    rank, options = int(words[0]), options_of(words[4:])
    at(state, [words[0], words[3], *(("still", options["for"]) if "for" in options else ())])
    holder = 999 if words[1] == "pid" else 1000 + int(words[1])
    state.process(rank, lock_holder=holder, lock_path=words[2], lock_polled_s=float(options.get("polled", 0)))


def lock_file(state: State, words: list[str]) -> None:
    """lock_file RANKS PATH [by PID] [ended 1]: they cannot make a file because it is there, and whose it is."""
    found = options_of(words[2:])
    file = LockFile(path=words[1], writer=int(found.get("by", "0")), ended="ended" in found)
    for rank in ranks_of(words[0]):
        state.main(
            rank, exception=f"FileExistsError: [Errno 17] File exists: '{words[1]}'", exception_path=words[1],
            exception_site=site_of("cache.py:12:locked"),
        )  # fmt: skip
        state.process(rank, lock_file=file)


def timed(state: State, words: list[str]) -> None:
    """timed RANKS CALL left S of S [child PID [awaited 1]]: what the main thread waits in, and when it ends."""
    found = options_of(words[2:])
    waits = TimedWait(
        call=words[1], asleep=words[1].endswith("sleep"), left_s=float(found["left"]), whole_s=float(found["of"]),
        child=int(found.get("child", "0")), awaited="awaited" in found,
    )  # fmt: skip
    for rank in ranks_of(words[0]):
        state.process(rank, timed=waits)
        if not waits.child:
            state.main(rank, in_kernel=words[1])


def phase(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.change(rank, phase=words[1], phase_s=5.0)


def work(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.main(rank, work=Phase[words[1]])


def source(state: State, words: list[str]) -> None:
    found = options_of(words[2:])
    lines = tuple(int(part) for part in found.pop("lines", "0-0").split("-"))
    note = SourceNote(
        site=site_of(words[1]),
        text=found.get("text", "..."),
        condition=found.get("if", ""),
        other_branch_ops=tuple(filter(None, found.get("other", "").split(","))),
        loop=found.get("loop", ""),
        loop_lines=(lines[0], lines[1]),
        loop_escapes=(found["escape"],) if "escape" in found else (),
        outer_loop=found.get("outer", ""),
        early_exits=(found["return"],) if "return" in found else (),
        rank_exit=found.get("leaves", ""),
    )
    for rank in ranks_of(words[0]):
        state.change(rank, sources=(*state.ranks[rank].sources, note))


def stack(state: State, words: list[str]) -> None:
    """stack RANKS "FUNCTION FILE:LINE"...: what py-spy shows of the main thread, innermost first."""
    for rank in ranks_of(words[0]):
        state.stacks[rank] = StackDump(rank=rank, threads=(("MainThread", tuple(map(frame_of, words[1:]))),))


def child_stack(state: State, words: list[str]) -> None:
    """child_stack RANK PID "FUNCTION FILE:LINE"...: what py-spy shows of a process that it waits for."""
    child = ChildStack(pid=int(words[1]), frames=tuple(map(frame_of, words[2:])))
    for rank in ranks_of(words[0]):
        known = state.stacks.get(rank) or StackDump(rank=rank)
        state.stacks[rank] = dataclasses.replace(known, children=(*known.children, child))


def unstacked(state: State, words: list[str]) -> None:
    """unstacked RANKS "WHY": there are no stacks of them."""
    for rank in ranks_of(words[0]):
        state.stacks[rank] = StackDump(rank=rank, failure=words[1])


def silent(state: State, words: list[str]) -> None:
    """silent RANKS [for S] [mute S] [closed S] [acknowledges S] [reached S from HOST]: their node tells nothing more.

    What the connection to it shows, and for how long.
    """
    found = options_of(words[1:])
    names = ("mute", "closed", "acknowledges", "reached")
    contacts = [(Contact(name), float(found[name])) for name in names if name in found]
    for rank in ranks_of(words[0]):
        state.silent[rank] = float(found.get("for", "0"))
        state.contacts[rank] = contacts[0] if contacts else (Contact.UNKNOWN, 0.0)
        state.reached_from[rank] = found.get("from", "")


def speaks(state: State, words: list[str]) -> None:
    """speaks RANKS: their node does again."""
    for rank in ranks_of(words[0]):
        del state.silent[rank], state.contacts[rank]


def cut_off(state: State, words: list[str]) -> None:
    """cut_off HOST: the server is there, and no other host reports."""
    state.cut_off_host = words[0]


COMMANDS: Mapping[str, Command] = {
    "cut_off": cut_off,
    "stack": stack,
    "child_stack": child_stack,
    "unstacked": unstacked,
    "silent": silent,
    "speaks": speaks,
    "host": host,
    "at": at,
    "stopped": stopped,
    "gil": gil,
    "disk": disk,
    "ended": ended,
    "leaving": leaving,
    "handling": handling,
    "frames": frames,
    "refused": refused,
    "sampled": sampled,
    "seen": seen,
    "thread": thread,
    "names": names,
    "kernel": kernel,
    "child": child,
    "answer": answer,
    "lost_thread": lost_thread,
    "standing": standing,
    "lock": lock,
    "timed": timed,
    "caught": caught,
    "over": over,
    "lock_file": lock_file,
    "phase": phase,
    "work": work,
    "source": source,
}
