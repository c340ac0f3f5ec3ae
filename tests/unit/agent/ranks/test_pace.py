"""What the agent tells of a rank's delays: boundaries that ranks have in common, and what keeps it from work."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ncclwatch.contract import digests
from ncclwatch.contract.groups import group_key
from ncclwatch.contract.model.devices import DeviceView, GpuSlow
from ncclwatch.contract.model.rank import ProcessState
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.members import digest_of
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch_agent.gpu.node_gpus import Gpu, GpuDesk, NodeGpus, parse, slow_of
from ncclwatch_agent.gpu.nvml import slow_by
from ncclwatch_agent.process.kernel_log import KernelLog, KernelNote, Trouble, same_pci
from ncclwatch_agent.process.kernel_log import parse as parse_record
from ncclwatch_agent.process.quota import parse_stolen_ticks, parse_throttled_ms, quota_files
from ncclwatch_agent.ranks.delays import Delays

S = 1_000_000_000
NAMES = [name for name, _ in digests.RANK_FIELDS][-len(digests.NO_PACE) :]
HOT = 0x20 | 0x04


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Recorder]:
    ring = RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(4, 4), attempt=0)
    yield Recorder(ring)
    ring.close()


@pytest.fixture
def reader(writer: Recorder) -> Iterator[Ring]:
    with Ring(writer.ring.path) as ring:
        yield ring


def told(delays: Delays, reader: Ring, at_s: float, gpu_slow: int = 0) -> dict[str, int]:
    values = delays.row(reader.words(), reader.groups(), int(at_s * S), gpu_slow)
    return dict(zip(NAMES, values, strict=True))


def go(writer: Recorder, number: int, first: int, end: int) -> None:
    for seq in range(first, end):
        writer.ring.meter(number, seq, 10)
        writer.ring.set_group(number, (1, seq, seq, 0))


def test_a_rank_is_cut_by_the_widest_group_that_it_uses_often(writer: Recorder, reader: Ring) -> None:
    for name, ranks in (("world", [0, 1, 2, 3]), ("pair", [0, 1]), ("alone", [0])):
        writer.add_group(name, "", ranks, 0)
    delays = Delays(reader, 0)
    go(writer, 0, 1, 2)  # once
    chosen = []
    for second in range(30):
        go(writer, 1, 1 + 5 * second, 6 + 5 * second)
        go(writer, 2, 1 + 5 * second, 6 + 5 * second)
        chosen.append(told(delays, reader, 100 + second)["pace_group"])
    assert set(chosen[:3]) == {0}
    assert set(chosen[4:]) == {group_key("pair", digest_of([0, 1]))}


def test_nobody_is_compared_in_a_group_whose_members_are_unknown(writer: Recorder, reader: Ring) -> None:
    writer.add_group("1", "", [], 0)
    delays = Delays(reader, 0)
    chosen = set()
    for second in range(12):
        go(writer, 0, 1 + 5 * second, 6 + 5 * second)
        chosen.add(told(delays, reader, 100 + second)["pace_group"])
    assert chosen == {0}


def test_boundaries_are_so_far_apart_that_a_server_sees_each(writer: Recorder, reader: Ring) -> None:
    writer.add_group("0", "", [0, 1], 0)
    delays = Delays(reader, 0)
    seqs = []
    for second in range(40):
        go(writer, 0, 1 + 100 * second, 101 + 100 * second)
        seqs.append(told(delays, reader, 100 + second)["pace_seq"])
    late = seqs[10:]
    assert {seq % 256 for seq in late} == {0}  # the power of two above 1.5 s of operations
    assert max(b - a for a, b in pairwise(late)) == 256


def test_two_agents_that_look_at_other_moments_tell_the_same_totals(writer: Recorder, reader: Ring) -> None:
    writer.add_group("0", "", [0, 1], 0)
    one, other = Delays(reader, 0), Delays(reader, 0)
    totals: list[dict[int, int]] = [{}, {}]
    for tick in range(60):
        go(writer, 0, 1 + 37 * tick, 38 + 37 * tick)
        for delays, seen, phase in ((one, totals[0], 0), (other, totals[1], 1)):
            if tick % 2 == phase:
                row = told(delays, reader, 100 + tick / 2)
                seen[row["pace_seq"]] = row["pace_waited_ns"]
    common = totals[0].keys() & totals[1].keys() - {0}
    assert len(common) > 5
    assert all(totals[0][seq] == totals[1][seq] == 10 * (seq - 1) for seq in common)


def test_what_a_rank_spends_is_told_in_milliseconds(writer: Recorder, reader: Ring) -> None:
    for number, word in enumerate((Word.DATA_NS, Word.GC_NS, Word.SAVE_NS, Word.PEERS_WAITED_NS), start=1):
        writer.ring.add_time(word, number * 7_000_000)
    delays = Delays(reader, 0)
    for second, state in enumerate((ProcessState.RUNNING, ProcessState.STOPPED, ProcessState.DISK_WAIT)):
        delays.observe((100 + second) * S, state, (40_000_000, 5_000_000))
    row = told(delays, reader, 102, gpu_slow=3)
    assert [row[name] for name in ("data_ms", "gc_ms", "save_ms", "peers_ms")] == [7, 14, 21, 28]
    assert [row[name] for name in ("queued_ms", "ran_ms", "stopped_ms", "disk_ms", "gpu_slow")] == [
        5,
        40,
        1000,
        1000,
        3,
    ]


def test_the_quota_of_a_control_group_is_read_in_both_versions() -> None:
    assert quota_files("0::/pod/x\n") == ("/sys/fs/cgroup/pod/x/cpu.stat",)
    assert "/sys/fs/cgroup/cpu,cpuacct/pod/cpu.stat" in quota_files("4:memory:/a\n3:cpu,cpuacct:/pod\n")
    assert quota_files("") == ()
    assert parse_throttled_ms(b"usage_usec 1\nnr_throttled 3\nthrottled_usec 12345\n") == 12
    assert parse_throttled_ms(b"nr_periods 1\nnr_throttled 3\nthrottled_time 12345678\n") == 12
    assert parse_throttled_ms(b"usage_usec 1\n") is None


def test_stolen_time_is_the_eighth_figure_of_the_first_line() -> None:
    assert parse_stolen_ticks(b"cpu  1 2 3 4 5 6 7 86500 0 0\ncpu0 9 9 9 9 9 9 9 9\n") == 86500
    assert parse_stolen_ticks(b"") == parse_stolen_ticks(b"cpu 1 2 3\n") == 0


@pytest.mark.parametrize(
    ("reasons", "clock", "errors", "slow"),
    [
        (0, 1980, 0, GpuSlow(0)),
        (0x04, 1500, 0, GpuSlow(0)),  # within its power limit, as busy GPUs are
        (0x04, 1200, 0, GpuSlow.CLOCKS),
        (0x01, 300, 0, GpuSlow(0)),  # idle
        (HOT, 1500, 0, GpuSlow.THERMAL),
        (0x40, 1200, 0, GpuSlow.THERMAL | GpuSlow.CLOCKS),
        (0x80, 1900, 0, GpuSlow.POWER),
        (0, 1980, 2, GpuSlow.MEMORY),
        (0x04, 0, 0, GpuSlow(0)),  # it tells no clocks
    ],
)
def test_what_slows_a_gpu_down(reasons: int, clock: int, errors: int, slow: GpuSlow) -> None:
    assert slow_by(reasons, clock, 1980, errors) == slow


def test_the_slowness_of_a_gpu_is_that_of_its_rank_s_own() -> None:
    node = parse(b'{"gpus": [{"uuid": "GPU-a", "slow": 1, "pci": "x"}, {"uuid": "GPU-b", "slow": 99999}]}')
    assert [slow_of(DeviceView(uuid=uuid), node) for uuid in ("GPU-a", "GPU-b", "GPU-c", "")] == [1, 31, 0, 0]


XID = "4,1234,5678,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n SUBSYSTEM=pci\n"


@pytest.mark.parametrize(
    ("record", "trouble", "subject"),
    [
        (XID, Trouble.XID, "0000:3b:00"),
        ("3,1,2,-;Out of memory: Killed process 4321 (python) total-vm:1kB", Trouble.OUT_OF_MEMORY, "4321"),
        ("3,1,2,-;Memory cgroup out of memory: Killed process 7 (python)", Trouble.OUT_OF_MEMORY, "7"),
        ("4,1,2,-;mlx5_core 0000:5e:00.0 ens1f0: Link down", Trouble.LINK, "0000:5e:00.0"),
        ("4,1,2,-;NETDEV WATCHDOG: eth0 (igb): transmit queue 3 timed out", Trouble.LINK, "eth0"),
        ("6,1,2,-;igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down", Trouble.LINK, "0000:01:00.0"),
    ],
)
def test_lines_of_the_kernel_that_matter(record: str, trouble: Trouble, subject: str) -> None:
    note = parse_record(record)
    assert note is not None
    assert (note.trouble, note.subject, "\n" in note.text) == (trouble, subject, False)


@pytest.mark.parametrize("record", ["", "overwritten", "6,1,2,-;usb 1-1: new device", "x;NVRM: Xid (PCI:0:1:2): 79, x"])
def test_other_lines_of_the_kernel_do_not(record: str) -> None:
    assert parse_record(record) is None


def test_the_driver_and_nvml_spell_a_device_differently() -> None:
    assert same_pci("00000000:3B:00.0", "0000:3b:00")
    assert not same_pci("00000000:3B:00.0", "0000:3c:00")
    assert not same_pci("", "")


def test_a_gpu_of_which_the_kernel_tells_errors_is_marked_and_a_program_s_own_errors_are_not() -> None:
    desk, log = GpuDesk(), KernelLog()
    desk.seen = NodeGpus(gpus=(Gpu(uuid="a", pci="00000000:3B:00.0"), Gpu(uuid="b", pci="00000000:3C:00.0")))
    log.notes.append(KernelNote(trouble=Trouble.XID, subject="0000:3b:00", text="", number=79))
    log.notes.append(KernelNote(trouble=Trouble.XID, subject="0000:3c:00", text="", number=31))
    desk.hear(log.gpu_errors)
    assert [gpu.slow for gpu in desk.seen.gpus] == [GpuSlow.XID, 0]


def test_a_kernel_log_that_may_not_be_read_says_nothing() -> None:
    with KernelLog() as log:
        assert log.look() == ()
