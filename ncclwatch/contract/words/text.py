"""The words for people: one advice for each cause, and how ranks are written.

A longer timeout is an advice only where the work really is long.
"""

from collections.abc import Iterable

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.rank_lists import host_groups

ADVICE: dict[Cause, str] = {
    Cause.RANK_CONDITIONAL_COLLECTIVE: (
        "Call it on all ranks of the group: move the collective (or the save, state_dict or log call that "
        "contains it) outside the if, and keep only the work that is really for one rank, such as writing the"
        " file, inside."
    ),
    Cause.UNEVEN_BATCHES: (
        "Give all ranks the same number of batches: `for batch in ncclwatch.even_batches(loader)` ends the epoch on"
        " all ranks together; or agree on the minimum with an all_reduce(MIN) of the count before the epoch, use"
        " drop_last=True, pad the short ranks, or run the loop inside torch.distributed.algorithms.Join. A longer"
        " timeout does not help: the missing batch never comes."
    ),
    Cause.DIVERGENT_CONTROL_FLOW: (
        "Let all ranks take the same decision: reduce the condition over the group first (all_reduce of the "
        "flag with MAX, or broadcast it from one rank) and then all skip, stop or continue together."
    ),
    Cause.COLLECTIVE_ORDER: (
        "Issue the collectives of these groups in the same order on every rank, in one thread; where two "
        "threads need collectives, give each a process group of its own and still keep one order."
    ),
    Cause.P2P_DEADLOCK: (
        "Pair every send with a recv that is posted in time: let one side receive first, or post both with "
        "isend/irecv or batch_isend_irecv and wait afterwards; check that peers and tags match."
    ),
    Cause.SIGNATURE_MISMATCH: (
        "Make all ranks pass the same shape, dtype, root and reduce op to this call: pad or gather the sizes "
        "first where lengths differ by rank."
    ),
    Cause.INIT_INCOMPLETE: (
        "Bring the missing rank to init_process_group: see what it does instead, and check that all ranks get"
        " the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE and can reach that address."
    ),
    Cause.GROUP_DESTROYED: (
        "Call destroy_process_group once, after the last collective of every rank, and use nothing of the "
        "group afterwards."
    ),
    Cause.DATA_STALL: (
        "Look at where this rank's data comes from: the file, mount, socket or worker named in the stack does"
        " not answer. Give reads a deadline and retry, or DataLoader(timeout=...), so that a stall becomes an"
        " error."
    ),
    Cause.HOST_STALL: (
        "Free the line this rank stands at: a lock, a queue, a child process or a native call that never "
        "returns. Give it a deadline, and take it outside the training step."
    ),
    Cause.PROCESS_FROZEN: (
        "Let the process run again (kill -CONT <pid>, or end the debugger that holds it) and find out who "
        "stopped it; if it cannot continue, restart the job."
    ),
    Cause.SWALLOWED_EXCEPTION: (
        "Do not go on after an exception on one rank only: re-raise it, or tell the others (all_reduce an "
        "error flag) and let all ranks retry or stop together. Then fix the exception itself."
    ),
    Cause.RANK_CRASHED: (
        "Fix what ended this rank; the other ranks only noticed that it was gone. After a signal 9 without a "
        "trace, look in the kernel log for the OOM killer (dmesg)."
    ),
    Cause.RANK_EXITED: (
        "Let all ranks leave training together: this one returned or called exit while the others still had "
        "collectives to run."
    ),
    Cause.STUCK_SAVE: (
        "Look at the storage this rank writes to: it makes no progress. Write to local disk first and copy "
        "afterwards, and give the copy a deadline."
    ),
    Cause.CONFLICTING_SAVE: (
        "Let one rank write each file (`if rank == 0`, with the barrier outside of the if), or give each rank a file "
        "of its own (the rank in its name). What lies there now may be a mixture: do not resume from it."
    ),
    Cause.FAILED_SAVE: (
        "Make room on that file system, or correct the path or its permissions, before the next checkpoint is due: "
        "until then there is nothing to resume from. What was left at the path is not whole."
    ),
    Cause.FILESYSTEM_VIEW: "Create and check shared paths on one rank, then tell the others through a broadcast.",
    Cause.DUPLICATE_DEVICE: (
        "Give every rank a device of its own: torch.cuda.set_device(LOCAL_RANK) first thing, and no more "
        "processes per node than it has visible devices."
    ),
    Cause.RNG_STATE_MISMATCH: (
        "Restore only as many random states as this run has devices, and seed the others: "
        "ncclwatch.restore_rng_state(states) does both, and so does "
        "torch.cuda.set_rng_state_all(states[:torch.cuda.device_count()]) where there are too many."
    ),
    Cause.CONFIGURATION_DRIFT: (
        "Start all ranks alike: the same image or environment on every node, the same variables (mpirun forwards only "
        "those named with -x), the same files to build the model from. Then restart the job."
    ),
    Cause.TRANSPORT: (
        "All ranks are inside the same collective and nothing moves: look at the network or fabric between "
        "these hosts (interface chosen, firewall, link errors) before the code."
    ),
    Cause.STRAGGLER: (
        "Nothing is stuck: the others wait for work that goes on. If that work really is longer than the "
        "group's timeout, raise the timeout in init_process_group(timeout=...) or let the other ranks share "
        "the work."
    ),
    Cause.UNDETERMINED: (
        "The evidence does not decide. The stacks and the last operations of each rank are below; compare the"
        " lines where they differ."
    ),
}

# Advice for what is known more closely than its cause.
ADVICE_QUOTA = (
    "Remove checkpoints that are not needed any more, of the same user, group or directory, or have the quota raised "
    "(quota -s, lfs quota -h, xfs_quota and mmlsquota tell what is used); df shows room that is not for this job. What "
    "was left at the path is not whole."
)
ADVICE_GIL = (
    "Let the native call release the GIL (the interpreter lock): call it through ctypes.CDLL instead of PyDLL, or put "
    "Py_BEGIN_ALLOW_THREADS around it in the extension; or run it in a process of its own, with a deadline."
)
ADVICE_NEW_GROUP = (
    "Call new_group on all ranks of the job, in one order, also on those that will not be in the group; or pass "
    "use_local_synchronization=True, which only its members need to call and which names it by them."
)
ADVICE_THREADS = (
    "Give the thread that works beside training a process group of its own (dist.new_group(), made on all ranks in the "
    "same order), or issue the collectives of this group from one thread only."
)
ADVICE_UNUSED = (
    "If a part of the model may stay unused on some ranks, wrap it with DistributedDataParallel(..., "
    "find_unused_parameters=True), or add that part to the loss with weight 0."
)
ADVICE_LOCK = (
    "Release a file lock before any collective: a rank that waits for the lock cannot come to the collective, and the "
    "rank that holds it waits there. Let one rank do the locked work, leave the lock, and only then meet in a barrier."
)
ADVICE_EXCEPTION = (
    "Fix the exception of this rank: its traceback is in this rank's own output. The errors of the other ranks are "
    "only its echo."
)
ADVICE_STORE = (
    "Look why the process that holds the store ended (torchrun, rank 0, or a TCPStore of the program's own): its "
    "output and the kernel log (dmesg). The exception of this rank names the store's address."
)
ADVICE_PIPE = (
    "Look what this rank was connected to at that line: a worker process of its data loader that was killed (out of "
    "memory? see dmesg, and lower num_workers), or a service that went away. Its traceback is in its own output."
)
ADVICE_KILLED = (
    "Find out who sent the signal: after SIGKILL look in the kernel log for the OOM killer (dmesg) and in the "
    "scheduler's log for a memory limit; after SIGSEGV or SIGABRT at this rank's last output and its core dump."
)

WAIT_WORDS: dict[WaitKind, str] = {
    WaitKind.STORE: "a key lookup on the rendezvous store",
    WaitKind.INIT: "init_process_group",
    WaitKind.NEW_GROUP: "new_group",
    WaitKind.DESTROY: "destroy_process_group",
    WaitKind.BACKWARD: "backward",
    WaitKind.DATA: "its data loader",
    WaitKind.SAVE: "a save",
    WaitKind.LOCK: "a file lock",
}


def rank_list(ranks: Iterable[int]) -> str:
    """Return ranks as people write them: (0, 1, 2, 5) is "0-2,5"."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def ranks_words(ranks: Iterable[int]) -> str:
    """Return "rank 3" or "ranks 0-2,5"."""
    found = sorted(set(ranks))
    return f"rank{'s' if len(found) != 1 else ''} {rank_list(found)}"


def host_words(hosts: Iterable[str], most: int = 6) -> str:
    """Return hosts for a sentence: "gpu[1-3], login", and how many further groups there are."""
    words = host_groups(hosts)
    return ", ".join(words if len(words) <= most else [*words[:most], f"and {len(words) - most} more"])


def bytes_words(count: float) -> str:
    """Return an amount of data for people: "512 B", "3.4 MB", "120 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.2g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def seconds_words(age_s: float) -> str:
    """Return a duration for people: "0.4 s", "25 s", "12 min"."""
    if age_s < 9.95:
        return f"{age_s:.1f} s"
    return f"{age_s:.0f} s" if age_s < 120 else f"{age_s / 60:.0f} min"


def harmless(text: str, *, keep_lines: bool = False) -> str:
    """Return text that a terminal shows and does not obey: control and formatting characters become \\x1b or \\u202e.

    C0, C1 and DEL move cursors and write clipboards; characters of direction let a line read as another; lone
    surrogates cannot be written at all. What is left are the printable characters of all scripts, and spaces.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (keep_lines and c == "\n") else _shown(c) for c in text)


def one_line(text: str) -> str:
    """Return text for a table, a page or a ticket: white space of any kind is a space, all else is `harmless`."""
    return text if text.isprintable() else harmless("".join(" " if c.isspace() else c for c in text))


def _shown(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
