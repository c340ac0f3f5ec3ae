"""Files that a job left behind, as `ncclwatch analyze` gets them: one of any kind beside a dump that is in order.

The first byte of an input says of what kind the file is.
"""

import contextlib
import json
import pickle
import random
import resource
import tempfile
from collections.abc import Hashable
from pathlib import Path

import msgspec

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.words.printable import harmless, json_text
from ncclwatch_server.offline import command
from ncclwatch_server.offline.answer import answer, lines
from ncclwatch_server.offline.gather import Gathered
from tests.fuzz import mutation
from tests.fuzz.engine import Surface
from tests.postmortem.dumps import OPEN, Job
from tests.postmortem.test_logs import SIGNAL, caught

_DIRECTORY = tempfile.TemporaryDirectory(prefix="ncclwatch-fuzz-")
_ROOM = Path(_DIRECTORY.name)
MEMORY_BYTES_MAX = 1 << 30  # that a file may make this process grow by, to spare the machine of whoever runs this
NAMES = {b"j": "rank_1.json", b"v": "trace_rank_1", b"p": "trace_rank_1", b"l": "rank1.log", b"s": "stacks_rank_1.json"}


def _job() -> Job:
    job = Job(2)
    job.steps(3)
    job.p2p(1, "send", 0)
    job.op((0,), name="all_reduce", state=OPEN)
    job.op((1,), name="broadcast", state=OPEN, site="train.py:50")
    return job


_JOB = _job()
(_ROOM / "trace_rank_0").write_bytes(pickle.dumps(_JOB.dump(0), protocol=2))


def check(data: bytes) -> Hashable:
    """Analyze: an answer, for people and for programs, or a sentence why there is none."""
    kind = data[:1] if data[:1] in NAMES else b"l"
    path = _ROOM / NAMES[kind]
    path.write_bytes(_content(kind, data[1:]))
    try:
        with _bounded_memory():
            gathered = Gathered()
            job, snapshot, incidents = command._analyze((_ROOM,), gathered)
            said = json_text(msgspec.json.encode(answer(job, snapshot, gathered, incidents)))
            for line in lines(snapshot, gathered, incidents):
                harmless(line).encode(errors="backslashreplace")
    except NcclwatchError as error:
        return str(error)[:30]
    finally:
        path.unlink()
    found = json.loads(said)["incidents"]
    return kind, tuple((each["cause"], each["certainty"], len(each["culprits"])) for each in found)


def _content(kind: bytes, data: bytes) -> bytes:
    """Return a file: a value of JSON as a pickle, or the bytes as they are."""
    if kind == b"v":
        with contextlib.suppress(ValueError, RecursionError):
            return pickle.dumps(json.loads(data), protocol=2)
    return data


@contextlib.contextmanager
def _bounded_memory():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES_MAX, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Change what the kind of file is made of."""
    kind, rest = data[:1], data[1:]
    return kind + (mutation.of_json(rng, rest) if kind in b"jvs" else mutation.of_bytes(rng, rest))


_REPORT = {"schema": 1, "job": "j", "world_size": 2, "incidents": []}
_FRAME = {"name": "step", "filename": "/home/user/train.py", "short_filename": "train.py", "line": 44}
_STACKS = [{"pid": 1, "thread_name": "MainThread", "os_thread_id": 1, "active": True, "frames": [_FRAME]}]
SURFACE = Surface(
    name="postmortem",
    seeds=(
        b"j" + json.dumps(_JOB.dump(1)).encode(),
        b"v" + json.dumps(_JOB.dump(1)).encode(),
        b"p" + pickle.dumps(_JOB.dump(1), protocol=2),
        b"l" + (caught(0, 1580) + caught(1, 1580) + SIGNAL.format(rank=2, line=1987, seq=1579)).encode(),
        b"s" + json.dumps(_STACKS).encode(),
        b"j" + json.dumps(_REPORT).encode(),
    ),
    mutate=mutate,
    check=check,
    cpu_s_max=10.0,
    growth_bytes_max=MEMORY_BYTES_MAX + (256 << 20),
)
