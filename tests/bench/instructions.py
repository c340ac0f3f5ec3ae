"""Counts the instructions of one operation, by valgrind: whatever else the machine does.

Recorders are compared on a backend that does nothing, as in recorder.py, and so is what is left after detach(): the
native recorder's kernels stay installed, and hand on. An instruction is no time: code that is met seldom waits for its
memory, see the cold figures of recorder.py.

    python -m tests.bench --only instructions         # needs valgrind and gcc; half a minute of CPU
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.row import Row

CALLS, WARM_CALLS = 200, 100
AFTER = "after detach()"
# The requests of callgrind are sequences of instructions that only its header knows.
_REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void stop(void) { CALLGRIND_STOP_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(const char* what) { CALLGRIND_DUMP_STATS_AT(what); }
"""
_TRIGGER = re.compile(r"^desc: Trigger: Client Request: (.*)$", re.MULTILINE)
_SUM = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def read(text: str) -> tuple[str, int] | None:
    """Return what a dump of callgrind is of and how many instructions it counts; None: of nothing that we asked for."""
    asked, counted = _TRIGGER.search(text), _SUM.findall(text)
    return (asked.group(1), int(counted[-1])) if asked and counted else None


def count(requests: str) -> None:
    """Issue each way of recorder.py under valgrind, with each recorder and without."""
    import ncclwatch
    from tests.bench.recorder import recorders, ways

    callgrind = ctypes.CDLL(requests)
    found, kinds = ways(), recorders()
    for state in ("bare", *kinds, AFTER):  # kernels of the native recorder come last, and stay
        if state in kinds:
            ncclwatch.attach(native=kinds[state])
        for name, way in found.items():
            callgrind.start()
            for _ in range(WARM_CALLS):
                way()
            callgrind.zero()
            for _ in range(CALLS):
                way()
            callgrind.dump(f"{state}|{name}".encode())
            callgrind.stop()
        ncclwatch.detach()
    sys.stdout.flush()
    os._exit(0)  # what torch does at its end is slow under valgrind, and no concern of ours


def measure() -> dict[tuple[str, str], float]:
    """Return the instructions of one call on the thread that makes it, by state and way."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as runtime:
        place = Path(runtime)
        (place / "requests.c").write_text(_REQUESTS)
        requests = place / "requests.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", requests, place / "requests.c"], check=True)
        environment = os.environ | {
            "NCCLWATCH_RUNTIME_DIR": runtime, "NCCLWATCH_AGENT": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0",
        }  # fmt: skip
        command = [
            "valgrind", "--tool=callgrind", "--separate-threads=yes", "--instr-atstart=no",
            f"--callgrind-out-file={place / 'out'}", sys.executable, "-m", "tests.bench.instructions", str(requests),
        ]  # fmt: skip
        subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, check=True)
        counted = (read(dump.read_text()) for dump in place.glob("out.*-01"))
        return {(of[0], of[2]): total / CALLS for name, total in filter(None, counted) if (of := name.partition("|"))}


def rows() -> list[Row]:
    """Return what each recorder adds to each way."""
    if shutil.which("valgrind") is None or shutil.which("gcc") is None:
        return [Row(what="instructions of one operation: valgrind or gcc is missing", unit="", ours=float("nan"))]
    found = measure()
    return [
        Row(
            what=f"instructions of {way}, {state}: {total - found['bare', way]:+,.0f}",
            unit="", ours=total, peer="the bare call", theirs=found["bare", way],
        )
        for (state, way), total in sorted(found.items())
        if state != "bare"
    ]  # fmt: skip


if __name__ == "__main__":
    count(sys.argv[1])
