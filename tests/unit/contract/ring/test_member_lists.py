"""What a ring says of its groups: all members, or that they are not known; and never another group's name."""

import contextlib
import json
import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclwatch.contract import config
from ncclwatch.contract.ring import layout, members, reader
from ncclwatch.contract.ring.call_sites import SiteText, parse, write
from ncclwatch.contract.ring.layout import Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.views import Picture, parse_note, rank_view
from ncclwatch.rank.checks.facts import Facts
from ncclwatch.rank.ring import ringfile
from ncclwatch.rank.ring.ringfile import RingFile

WORLD = list(range(98_304))
SCATTERED = random.Random(14).sample(range(98_304), 98_304)
LISTS = {
    "one rank": [3],
    "the last that fitted as text": list(range(12_773)),
    "the first that was cut as text": list(range(12_774)),
    "one more": list(range(12_775)),
    "16,384 ranks": list(range(16_384)),
    "98,304 ranks": WORLD,
    "backwards": WORLD[::-1],
    "a stride": WORLD[5::8],
    "blocks of a stride": [first + rank for first in range(0, 98_304, 64) for rank in range(0, 16, 2)],
    "no order": SCATTERED[:20_000],
    "half of the world": sorted(SCATTERED[:49_152]),
    "a list that names a rank twice": [*WORLD[:-1], 7],
}


@pytest.fixture
def ring(tmp_path: Path):
    written = RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(98_304, 8), attempt=0)
    yield written
    written.close()


def fill_strings(ring: RingFile) -> None:
    for number in range(400):
        ring.string(f"{number:01900d}")
    for number in range(100):
        ring.string(f"{number:020d}")


@pytest.mark.parametrize("ranks", LISTS.values(), ids=list(LISTS))
def test_all_members_of_a_group_are_read_back_in_their_order(ring: RingFile, ranks: list[int]):
    ring.add_group("0", "default_pg", ranks, 0)
    with Ring(ring.path) as read:
        (group,) = read.groups()
    assert group.ranks == tuple(ranks)
    assert (group.roster.size, group.roster.digest) == (len(ranks), members.digest_of(ranks))
    assert ring.word(Word.DROPPED) == 0


def test_a_list_without_room_is_counted_and_read_as_unknown_with_its_number_and_digest(ring: RingFile):
    ring.add_group("g", "", SCATTERED, 0)
    with Ring(ring.path) as read:
        (group,) = read.groups()
        (view,) = rank_view(Picture.of(read, 1)).groups
    assert group.ranks == ()
    assert (view.ranks, view.runs, view.size, view.members_digest) == ((), (), 98_304, members.digest_of(SCATTERED))
    assert ring.word(Word.DROPPED) == 1


def test_groups_with_the_same_members_share_one_list(ring: RingFile):
    for number in range(40):
        ring.add_group(str(number), "", WORLD, 0)
    with Ring(ring.path) as read:
        groups = read.groups()
    assert len({id(group.roster) for group in groups}) == 1
    assert groups[-1].ranks == tuple(WORLD)
    assert ring.word(Word.MEMBERS_USED) < 1_000


def test_all_groups_have_their_names_and_members_when_the_table_of_strings_is_full(ring: RingFile):
    fill_strings(ring)
    lost = ring.word(Word.DROPPED)
    names = [f"{'n' * 10_000}{number}" for number in range(config.GROUPS_MAX)]
    for number, name in enumerate(names):
        ring.add_group(name, f"{name} desc", WORLD[number :: config.GROUPS_MAX], 0)
    assert all(ring.told({"kind": "x" * 9_000}, kept=True) for _ in range(2))  # what it is, and how it ended
    with Ring(ring.path) as read:
        groups = read.groups()
    assert len({group.name for group in groups}) == config.GROUPS_MAX
    assert {len(group.name.encode()) for group in groups} == {config.NAME_BYTES_MAX}
    assert all(group.desc.startswith("n" * 100) for group in groups)
    assert [group.ranks for group in groups] == [tuple(WORLD[n :: config.GROUPS_MAX]) for n in range(config.GROUPS_MAX)]
    assert ring.word(Word.DROPPED) == lost > 0


def test_what_is_no_list_of_ranks_is_unknown_and_counted(ring: RingFile):
    ring.add_group("g", "", ["a", "b"], 0)
    ring.add_group("h", "", [0, 1 << 40], 0)
    ring.add_group("i", "", [], 0)
    with Ring(ring.path) as read:
        assert [(group.ranks, group.roster.size) for group in read.groups()] == [((), 0)] * 3
    assert ring.word(Word.DROPPED) == 3


def test_a_group_larger_than_any_is_unknown(ring: RingFile, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ringfile, "GROUP_MEMBERS_MAX", 1_000)
    ring.add_group("g", "", range(1_001), 0)
    ring.add_group("h", "", range(1_000), 0)
    with Ring(ring.path) as read:
        assert [(len(group.ranks), group.roster.size) for group in read.groups()] == [(0, 1_001), (1_000, 1_000)]
    assert ring.word(Word.DROPPED) == 1


def test_a_list_is_not_made_that_is_larger_than_any():
    ranks = range(members.GROUP_MEMBERS_MAX + 1)
    assert members.unpack(members.pack(ranks), len(ranks), members.digest_of(ranks)).members == ()


def test_a_forged_ring_has_only_so_many_members_read(ring: RingFile, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "MEMBERS_MAX", 4_000)
    for number in range(5):
        ring.add_group(str(number), "", range(number, 1_000), 0)
    with Ring(ring.path) as read:
        assert [bool(group.roster.runs) for group in read.groups()] == [True] * 4 + [False]


def test_a_list_that_names_ranks_the_job_has_not_is_unknown_and_a_server_is_not_told_of_it(tmp_path: Path):
    path = str(tmp_path / "0-1.ring")
    with contextlib.closing(RingFile(path, rank=0, local_rank=0, world=(64, 8), attempt=0)) as written:
        for ranks in (range(64), range(65), range(0, 128, 2), (63, 1), (64, 1)):
            written.add_group("g", "", ranks, 0)
        with Ring(path) as read:
            assert [bool(group.ranks) for group in read.groups()] == [True, False, False, True, False]
            assert [group.roster.size for group in read.groups()] == [64, 65, 64, 2, 2]


def test_texts_that_overlap_fill_no_memory(ring: RingFile):
    ring.set_word(Word.STRINGS_USED, config.STRINGS_BYTES_MAX)
    ring.memory[layout.STRINGS_AT : layout.EVENTS_AT] = b"\x40" * (layout.EVENTS_AT - layout.STRINGS_AT)
    tracemalloc.start()
    with Ring(ring.path) as read:
        assert {len(read.string(offset)) for offset in range(4, 1_004)} == {0x4040}
        kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 2_000_000


def test_a_name_that_a_forged_ring_makes_long_is_as_short_as_any(ring: RingFile):
    ring.add_group("g", "", [0, 1], 0)
    long = ring.string("n" * config.TEXT_CHARS_MAX)
    ring.memory[layout.GROUPS_AT : layout.GROUPS_AT + 8] = struct.pack("<II", long, long)
    with Ring(ring.path) as read:
        (group,) = read.groups()
    assert group.name.startswith("nnn")
    assert group.name == group.desc
    assert len(group.name.encode()) == config.NAME_BYTES_MAX


def test_rows_of_groups_that_change_are_read_anew_and_fill_no_memory(ring: RingFile):
    ring.add_group("g", "", [0, 1], 0)
    at = layout.GROUPS_AT + layout.GROUP_SIZE_AT
    tracemalloc.start()
    with Ring(ring.path) as read:
        for number in range(8_000):
            ring.memory[at : at + 4] = struct.pack("<I", number)
            assert read.groups()[0].roster.size == number
        kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 1_000_000


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_bytes_stand_there_members_are_the_right_ones_or_unknown(tmp_path_factory, data: st.DataObject):
    path = tmp_path_factory.mktemp("ring") / "0-1.ring"
    writer = RingFile(str(path), rank=0, local_rank=0, world=(64, 8), attempt=0)
    lists = ([0, 1, 2, 3], list(range(0, 64, 3)), [5, 2, 9])
    for number, ranks in enumerate(lists):
        writer.add_group(str(number), "", ranks, 0)
    rows = st.integers(layout.GROUPS_AT, layout.GROUPS_AT + 3 * layout.GROUP_BYTES - 1)
    texts = st.integers(layout.MEMBERS_AT, layout.MEMBERS_AT + 120)
    words = st.integers(layout.HEADER_BYTES, layout.HEADER_BYTES + 8 * 32 - 1)
    for at, value in data.draw(st.lists(st.tuples(rows | texts | words, st.integers(0, 255)), max_size=12)):
        writer.memory[at] = value
    writer.close()
    with Ring(str(path)) as read:
        for group in read.groups():
            assert group.ranks == () or members.digest_of(group.ranks) == group.roster.digest
            assert group.ranks == () or len(group.ranks) == group.roster.size


@given(st.binary(max_size=400), st.integers(0, 5000), st.integers(0, 2**64 - 1))
def test_garbage_is_no_list_of_members(data: bytes, size: int, digest: int):
    assert members.unpack(data, size, digest) == members.Roster(size, digest)


def test_a_short_text_that_becomes_a_long_list_is_read_no_further_than_it_says(ring: RingFile):
    ring.add_group("g", "", WORLD, 0)
    at = layout.GROUPS_AT + layout.GROUP_SIZE_AT
    ring.memory[at : at + 4] = struct.pack("<I", 10)
    with Ring(ring.path) as read:
        assert read.groups()[0].ranks == ()


def test_a_list_that_says_it_goes_on_behind_what_is_written_is_unknown(ring: RingFile):
    ring.add_group("g", "", [0, 1], 0)
    at = layout.MEMBERS_AT + layout.FIRST_STRING
    ring.memory[at : at + 4] = struct.pack("<I", 1 << 31)
    with Ring(ring.path) as read:
        assert read.groups()[0].ranks == ()


def test_what_a_rank_says_of_itself_is_read_however_long_its_command_line(ring: RingFile):
    said = {"job": "j", "argv": "--data /é" * 20_000, "cwd": "/very/long" * 400, "server": "http://head:8470"}
    ring.set_word(Word.IDENTITY, ring.told(said, kept=True))
    with Ring(ring.path) as read:
        found = read.identity()
    assert (found["job"], found["server"]) == ("j", "http://head:8470")
    assert found["argv"].startswith("--data /é--data")
    assert found["argv"].endswith("…")


def test_how_a_rank_ended_is_read_when_the_table_is_full_and_its_words_are_long(ring: RingFile):
    fill_strings(ring)
    said = {
        "kind": "crashed",
        "exit_code": 1,
        "exception": "RuntimeError: " + "形状不匹配" * 2_000,
        "file": "/train.py",
    }
    ring.set_word(Word.ENDED, ring.told(said, kept=True))
    with Ring(ring.path) as read:
        ending = parse_note(read.string(read.words()[Word.ENDED]))
    assert ending is not None
    assert (ending.kind, ending.exit_code) == ("crashed", 1)
    assert ending.exception.startswith("RuntimeError: 形状不匹配")


def test_what_was_found_out_stays_told_when_there_is_no_room_for_more(ring: RingFile):
    facts = Facts(ring)
    facts.tell("device", index=3)
    fill_strings(ring)
    facts.tell("device", uuid="GPU-1")
    with Ring(ring.path) as read:
        assert json.loads(read.string(read.words()[Word.FACTS])) == {"device": {"index": 3}}


@pytest.mark.parametrize(
    "site",
    [
        SiteText("/data" * 1_000 + "/train.py", 1234, "step"),
        SiteText("/" + "数" * 1_990, 1234, "s" * 5_000, "l" * 4_000, (4, 9)),
    ],
)
def test_the_line_of_a_call_site_is_right_however_long_its_path(ring: RingFile, site: SiteText):
    known = ring.string(write(site))
    with Ring(ring.path) as read:
        found = parse(read.string(known))
    assert found is not None
    assert (found.line, found.callers) == (site.line, site.callers)
    assert site.file.endswith(found.file.lstrip("…"))
