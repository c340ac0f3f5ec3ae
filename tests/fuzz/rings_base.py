"""A real ring with something in every table, and changed copies of it.

An input is a JSON list of [offset, hex]: bytes to be put over those of the ring.
"""

import json
import random
import struct
from pathlib import Path

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import Op
from ncclwatch.contract.ring import layout
from ncclwatch.contract.ring.layout import OPS, Word
from ncclwatch_server.simulation.rings import SimulatedRing
from tests.fuzz.mutation import INTEGERS, TEXTS
from tests.scenarios.texts import situation
from tests.scenarios.through_rings import _Writing

SCENARIO = Path(__file__).parents[1] / "scenarios/data_stall/data_loader_stalls.txt"
IDENTITY = {
    "job": "j",
    "instance": "h:1/r",
    "host": "h",
    "server": "http://127.0.0.1:9",
    "argv": "train.py",
    "cwd": "/u",
}
# Where changes do most: (from, bytes, width of a cell).
_REGIONS = (
    (0, layout.HEADER.size, 4),
    (layout.HEADER_BYTES, 32 * 8, 8),
    (layout.GROUPS_AT, 3 * layout.GROUP_BYTES, 4),
    (layout.THREADS_AT, 3 * layout.THREAD_BYTES, 4),
    (layout.PEERS_AT, 2 * layout.PEER_BYTES, 4),
    (layout.LOADERS_AT, 2 * layout.LOADER_BYTES, 4),
    (layout.SAMPLES_AT, 512, 4),
    (layout.STRINGS_AT, 2048, 2),
    (layout.EVENTS_AT, 8 * layout.EVENT_BYTES, 4),
    (layout.BUCKETS_AT, 2 * layout.BUCKET_BYTES, 4),
    (layout.SAVES_AT, 512, 4),
    (layout.METERS_AT, 2 * layout.METER_BYTES, 4),
    (layout.MEMBERS_AT, 128, 4),
)
_TEXT_WORDS = (Word.IDENTITY, Word.PHASE, Word.ENDED, Word.ENDPOINT, Word.DEVICE, Word.FACTS, Word.BACKWARD_SITE)


def _base() -> bytes:
    view = situation(SCENARIO.read_text().partition("----\n")[0]).snapshot().ranks[0]
    with SimulatedRing(rank=0, local_rank=0, world=(4, 4)) as ring:
        _Writing(ring, view).all()
        ring.say(Word.IDENTITY, json.dumps(IDENTITY))
        ring.say(Word.ENDED, json.dumps({"kind": "crashed", "exit_code": 1, "exception": "ValueError: x"}))
        ring.file.set_word(Word.ENDED, 0)
        site = ring.file.string("/u/train.py:3 main")
        ring.file.set_loader(ring.file.add_loader(site), site, 1, 10)
        ring.file.add_bucket(0, "3x224x224")
        ring.file.begin_bucket(0, 1)
        ring.file.set_bucket_drawn(0, 4)
        ring.file.set_word(Word.LOADER, 1)
        ring.file.add_peer(0, 1)
        ring.file.set_sample(
            0, 5, {"name": "MainThread", "leaf": "f /u/train.py:9", "frames": [["/u/train.py", 9, "f"]]}
        )
        ring.file.set_save(0, (7, 0), site, {"call": "torch.save", "path": "/u/a.pt", "bytes": "9"})
        many = ring.recorder.add_group("tp", "tensor parallel", list(range(0, 4000, 2)), 0)
        for _ in range(4):
            issued = ring.recorder.issue(many, OPS.index(Op.ALL_REDUCE), 8, (-1, 1, 1), site)
            ring.recorder.track(issued, None)
            ring.file.meter(many.number, issued.seq, 1000)
        return bytes(ring.file.memory)


BASE = _base()


def write(path: Path, patches: bytes) -> None:
    """Write the changed parts of a ring into a file that has held one; `path` holds the base beforehand."""
    with path.open("r+b") as file:
        for at, data in _parsed(patches):
            file.seek(at)
            file.write(data)
        file.truncate(layout.RING_BYTES)


def restore(path: Path, patches: bytes) -> None:
    """Undo `write`."""
    with path.open("r+b") as file:
        for at, data in _parsed(patches):
            file.seek(at)
            file.write(BASE[at : at + len(data)])


def _parsed(patches: bytes) -> list[tuple[int, bytes]]:
    """Return the places of an input and what is put there; nothing of what is no input."""
    try:
        found = [(at, bytes.fromhex(text)) for at, text in json.loads(patches)]
    except (ValueError, TypeError, RecursionError):
        return []
    return [(at, data) for at, data in found if isinstance(at, int) and 0 <= at <= layout.RING_BYTES]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Return an input with one place more, or less."""
    patches: list[object] = [[at, new.hex()] for at, new in _parsed(data)]
    if patches and rng.random() < 0.2:
        del patches[rng.randrange(len(patches))]
    for _ in range(rng.randint(1, 3)):
        patches.append(_patch(rng))
    return json.dumps(patches[-24:]).encode()


def _patch(rng: random.Random) -> list[object]:
    if rng.random() < 0.25:
        return _text_patch(rng)
    begin, size, width = rng.choice(_REGIONS)
    at = begin + rng.randrange(size // width) * width
    old = int.from_bytes(BASE[at : at + width], "little")
    new = rng.choice((*INTEGERS, old + 1, old - 1, old << 1, old ^ 1 << rng.randrange(8 * width), rng.getrandbits(64)))
    data = (new % (1 << 8 * width)).to_bytes(width, "little") * rng.choice((1, 1, 1, 2, 8))
    return [at, data.hex()]


def _text_patch(rng: random.Random) -> list[object]:
    """Put another text into the table of strings, over one that is used."""
    with_texts = [struct.unpack_from("<Q", BASE, layout.HEADER_BYTES + 8 * word)[0] for word in _TEXT_WORDS]
    at = layout.STRINGS_AT + rng.choice([each for each in with_texts if each] + [layout.FIRST_STRING])
    text = rng.choice(TEXTS) if rng.random() < 0.5 else json.dumps(_garbled(rng))
    data = text.encode("utf-8", "surrogatepass")[: config.TEXT_CHARS_MAX]
    return [at, (struct.pack("<H", len(data)) + data).hex()]


def _garbled(rng: random.Random) -> object:
    keys = rng.sample(
        (*IDENTITY, "kind", "exit_code", "exception", "file", "line", "function", "server_named", "device"), 4
    )
    return {key: rng.choice((*TEXTS, *INTEGERS[:20], None, [1], {"a": 1}, True, 1e308)) for key in keys}
