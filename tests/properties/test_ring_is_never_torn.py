"""A reader in another process sees whole rows only, whatever the writer is doing, and after it was killed."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.errors import RingError
from ncclwatch.contract.ring.layout import RING_BYTES, Word
from ncclwatch.contract.ring.reader import Ring

NOISE = random.Random(3).randbytes(RING_BYTES)
# Every row it writes is redundant: all fields follow from one number, so that a torn one shows.
_WRITER = """
import sys, threading
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.rank.ring.ringfile import RingFile
ring = RingFile(sys.argv[1], rank=3, local_rank=1, world=(8, 4), attempt=2)
group = ring.add_group("0", "default_pg", list(range(8)), 0)
thread = ring.add_thread(4242, True)
peer = ring.add_peer(group, 5)
loader = ring.add_loader(0)
def hammer(first):
    for n in range(first, 1 << 30, 2):
        m = n & 0xFFFFF
        ring.add_event(group, m % 12, 7, n * 3, n & 0xFFFFFF, n * 5, n, n & 0x3FFFFFF, n, m)
        ring.set_group_head(group, n * 7, n)
        ring.set_group_done(group, n, n)
        ring.set_wait(thread, ring.wait(n, n, group, 1, m % 12, m))
        ring.set_peer(peer, [n & 0xFFFF] * 4)
        ring.set_loader_counts(loader, n, n)
        if n % 64 == 0:
            ring.string("site %d" % (n % 2000))
            ring.set_sample(0, n, {"name": str(n), "leaf": str(n)})
threading.Thread(target=hammer, args=(1,), daemon=True).start()
print("ready", flush=True)
hammer(2)
"""


@pytest.fixture
def writer(tmp_path: Path):
    path = tmp_path / "job" / "3-1.ring"
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process, path
    process.kill()
    process.wait()
    process.stdout.close()


def _check(ring: Ring) -> int:
    """Assert that everything in the ring is whole; return how many events were seen."""
    seen = 0
    for event in ring.events(300):
        assert (event.numel, event.prefix_hash, event.forwards) == (event.seq * 3, event.seq * 5, event.seq)
        assert (event.site, event.batch) == (event.seq & 0xFFFFFF, event.seq & 0x3FFFFFF)
        assert event.peer == (event.seq & 0xFFFFF) - 1
        seen += 1
    (group,) = ring.groups()
    assert group.prefix_hash == group.enqueued * 7
    assert (group.name, group.desc, group.ranks) == ("0", "default_pg", tuple(range(8)))
    (thread,) = ring.threads()
    assert thread.wait is None or thread.wait.site == thread.wait.seq
    assert thread.wait is None or thread.wait.peer == thread.wait.seq & 0xFFFFF
    (peer,) = ring.peers()
    assert peer.sends == peer.sends_completed == peer.recvs == peer.recvs_completed
    (loader,) = ring.loaders()
    assert loader.drawn == loader.ended_pass
    sample = ring.sample(0)
    assert sample is None or sample[1]["name"] == sample[1]["leaf"] == str(sample[0])
    assert all(text.startswith(("site ", "0", "default_pg", "[")) for _, text in ring.strings())
    return seen


def test_no_slot_or_header_is_ever_seen_half_written(writer):
    process, path = writer
    with Ring(str(path)) as ring:
        assert (ring.header.rank, ring.header.local_rank, ring.header.world_size, ring.header.attempt) == (3, 1, 8, 2)
        seen = sum(_check(ring) for _ in range(400))
        heads = ring.words()[Word.EVENTS_HEAD]
    assert seen > 10_000
    assert heads > config.EVENTS_MAX, "the ring did not go round: nothing was overwritten under the reader"
    assert process.poll() is None


def test_a_ring_is_read_after_its_writer_got_sigkill(writer):
    process, path = writer
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with Ring(str(path)) as ring:
        assert ring.header.pid == process.pid
        assert _check(ring) > 200
        assert ring.words()[Word.EVENTS_HEAD] > 0


@pytest.mark.parametrize("content", [b"", b"NCCLWRNG", b"\0" * RING_BYTES, NOISE])
def test_what_is_no_ring_is_refused_with_a_sentence(tmp_path: Path, content: bytes):
    path = tmp_path / "0-1.ring"
    path.write_bytes(content)
    with pytest.raises(RingError, match=str(path)):
        Ring(str(path))


def test_a_ring_with_a_right_header_and_garbage_behind_it_is_read_without_an_error(writer, tmp_path: Path):
    _, path = writer
    garbage = tmp_path / "garbage.ring"
    garbage.write_bytes(path.read_bytes()[:512] + NOISE[512:])
    with Ring(str(garbage)) as ring:
        ring.identity()
        for read in (ring.groups, ring.threads, ring.peers, ring.loaders, lambda: list(ring.strings())):
            read()
        ring.events(config.EVENTS_MAX)
        for index in range(config.THREADS_MAX + 1):
            ring.sample(index)


_READER = """
import sys
from ncclwatch.contract.ring.reader import Ring
with Ring(sys.argv[1]) as ring:
    print("ready", flush=True)
    sys.stdin.readline()
    whole = ring.is_whole()
    ring.words(), ring.groups(), ring.threads(), ring.peers(), ring.loaders(), ring.buckets(), ring.saves()
    list(ring.strings()), ring.events(100), ring.meter(0, 0), ring.identity(), ring.sample(0)
    print(whole, flush=True)
"""


def test_a_ring_that_is_cut_short_under_its_reader_does_not_kill_it(writer, tmp_path: Path):
    copy = tmp_path / "copy.ring"
    copy.write_bytes(writer[1].read_bytes())
    with subprocess.Popen(
        [sys.executable, "-c", _READER, str(copy)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        os.truncate(copy, 0)
        said, _ = reader.communicate("go\n", timeout=60)
    assert (reader.returncode, said) == (0, "False\n")
