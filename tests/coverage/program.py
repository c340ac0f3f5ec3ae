"""Runs the rows as one of two ranks, and prints one JSON line: what this rank recorded, row by row.

Rank 1 begins each row only once it sees, in rank 0's ring, what rank 0 waits in; so who waits is
observed and not assumed.
"""

import contextlib
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch.distributed as dist

import ncclwatch
from ncclwatch.contract.errors import RingError
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.ring.call_sites import parse
from ncclwatch.contract.ring.layout import NO_GROUP, Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.torch_versions import flight_recorder_entries
from tests.coverage.rows import RANK, ROWS, SAVED, SHARED


def find_ring(rank: int) -> Ring:
    """Wait for a rank's ring and open it."""
    while True:
        for path in Path(os.environ["NCCLWATCH_RUNTIME_DIR"]).glob(f"*/*/{rank}-*.ring"):
            with contextlib.suppress(RingError):
                return Ring(str(path))
        pause(0.005)


def names(ring: Ring) -> dict[int, str]:
    """Return what groups are called in the table: their description, else their name."""
    return {g.number: g.desc if g.desc not in ("", "undefined") else g.name for g in ring.groups()}


def wait_of(ring: Ring, since_ns: int) -> tuple[object, ...] | None:
    """Return what a rank has been blocked in since it began a row; None also while its thread runs, or waits to run."""
    for thread in ring.threads():
        if thread.wait is not None and thread.wait.since_ns >= since_ns and is_asleep(ring.header.pid, thread.tid):
            wait = thread.wait
            grouped = wait.group != NO_GROUP
            place = (wait.op.value, names(ring)[wait.group], wait.seq, wait.peer) if grouped else ()
            return (wait.since_ns, wait.kind.value, thread.main, *place)
    return None


def is_asleep(pid: int, tid: int) -> bool:
    """Say whether a thread sleeps. On a busy machine one may be seen for long in a call that does not block."""
    stat = Path(f"/proc/{pid}/task/{tid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"


def watch_rank_0(ring: Ring, name: str) -> tuple[object, ...] | None:
    """Return what rank 0 waits in while rank 1 stays away; None if it went through the whole row alone."""
    while not Path(SHARED, f"{name}.began").exists():
        pause(0.002)
    began = int(Path(SHARED, f"{name}.began").read_text())
    seen, times = None, 0
    while not Path(SHARED, f"{name}.alone").exists():
        found = wait_of(ring, began)
        # A save that takes long is work of its own: what it waits for us in shows as a wait inside it.
        waiting = found is not None and found[1] != WaitKind.SAVE.value
        times = times + 1 if waiting and found == seen else 0
        seen = found
        if times >= 20:  # the same wait for 20 looks: it waits for us
            return found
        pause(0.005)
    return None


def flag(name: str, text: str = "") -> None:
    """Tell the other rank something, past all that is being tested."""
    with tempfile.NamedTemporaryFile("w", dir=SHARED, delete=False) as file:
        file.write(text)
    Path(file.name).rename(Path(SHARED, name))


def until(name: str) -> None:
    while not Path(SHARED, name).exists():
        pause(0.002)


def pause(seconds: float) -> None:
    """Wait for the other rank, which has not failed."""
    time.sleep(seconds)
    if Path(SHARED, f"failed{1 - RANK}").exists():
        sys.exit("the other rank has failed")


@contextlib.contextmanager
def watched(name: str, other: Ring) -> Iterator[list[object]]:
    """Let rank 0 go first, and hold rank 1 back until it has seen what rank 0 waits in."""
    waits: list[object] = []
    if RANK == 0:
        flag(f"{name}.began", str(time.monotonic_ns()))
    else:
        found = watch_rank_0(other, name)
        waits.append(found[1:] if found else None)
    yield waits
    if RANK == 0:
        flag(f"{name}.alone")
    flag(f"{name}.done{RANK}")
    until(f"{name}.done{1 - RANK}")


def witness() -> dict[str, int]:
    """Return the number of collectives of each group by torch's flight recorder; before torch 2.8 it has no gloo."""
    counts: dict[str, int] = {}
    for entry in flight_recorder_entries():
        if not entry["is_p2p"]:
            name = entry["process_group"][0]
            counts[name] = max(counts.get(name, 0), entry["collective_seq_id"])
    return counts


def run(name: str, way: Callable[[], object], mine: Ring, other: Ring) -> dict[str, object]:
    """Run one row and return what was recorded."""
    mine_before = {g.number: g.enqueued for g in mine.groups()}
    peers_before = {(p.group, p.peer): (p.sends, p.recvs) for p in mine.peers()}
    before_words = mine.words()
    first = before_words[Word.EVENTS_HEAD]
    trouble = ""
    with watched(name, other) as waits:
        try:
            way()
        except Exception as error:  # noqa: BLE001 - the test shows it
            trouble = f"{type(error).__name__}: {error}"
    operations = []
    for event in mine.events(4096):
        if event.number < first:
            continue
        before = mine_before.get(event.group, 0)
        if event.op.is_p2p:
            before = peers_before.get((event.group, event.peer), (0, 0))[event.op.value == "recv"]
        site = parse(mine.string(event.site))
        operations.append(
            {
                "op": event.op.value,
                "group": names(mine)[event.group],
                "seq": event.seq - before,
                "numel": event.numel,
                "dtype": event.dtype,
                "reduce_op": event.reduce_op,
                "peer": event.peer,
                "label": site.label if site else "",
                "site": site.file.rsplit("/", 1)[-1] if site else "",
                "function": site.function if site else "",
                "callers": [parse(mine.string(caller)).function for caller in site.callers] if site else [],
                "main": mine.threads()[event.thread].main,
            }
        )
    return {
        "operations": operations,
        "waits": waits,
        "trouble": trouble,
        "hashes": {names(mine)[g.number]: g.prefix_hash for g in mine.groups()},
        "enqueued": {g.name: g.enqueued for g in mine.groups() if not g.flags},
        "witness": witness() if dist.is_initialized() else {},
        "blocked": [t.number for t in mine.threads() if t.wait is not None],
        "groups": {names(mine)[g.number]: list(g.ranks) for g in mine.groups() if not g.flags},
        "dropped": mine.words()[Word.DROPPED],
        "blocked_ns": [mine.words()[w] - before_words[w] for w in (Word.WAITED_NS, Word.PEERS_WAITED_NS)],
    }


def settle(mine: Ring) -> dict[str, list[int]]:
    """Return (enqueued, completed) of each group once the pulse has seen all works through, at most 20 s later."""
    deadline = time.monotonic() + 20
    while True:
        counts = {g.name: [g.enqueued, g.completed] for g in mine.groups() if not g.flags}
        if all(enqueued == completed for enqueued, completed in counts.values()) or time.monotonic() > deadline:
            return counts
        time.sleep(0.01)


def main() -> None:
    ncclwatch.attach()
    mine, other = find_ring(RANK), find_ring(1 - RANK)
    found: dict[str, object] = {}
    with watched("init_process_group", other) as waits:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    found["init_process_group"] = {"operations": [], "waits": waits, "trouble": "", "hashes": {}, "blocked": []}
    SAVED["io"] = dist.new_group([0, 1], group_desc="io")
    chosen = sys.argv[2:] or list(ROWS)
    for name in chosen:
        found[name] = run(name, ROWS[name], mine, other)
    from ncclwatch.rank.attach import current

    recorder = type(current()).__name__ + ("" if current().hot is None else ", with its hot path in C")
    print(json.dumps({"rows": found, "frontier": settle(mine), "recorder": recorder}), flush=True)
    flag(f"printed{RANK}")
    until(f"printed{1 - RANK}")
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        flag(f"failed{RANK}")
        raise
