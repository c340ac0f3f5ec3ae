"""Lists of ranks and hosts in few characters, and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.words.rank_lists import host_list, ranks_of
from ncclwatch.contract.words.text import rank_list


@pytest.mark.parametrize(
    ("hosts", "written"),
    [
        ((), ""),
        (("login",), "login"),
        (("gpu3",), "gpu3"),
        (("gpu3", "gpu1", "gpu2", "login"), "gpu[1-3],login"),
        (("node8", "node9", "node10", "node12"), "node[8-10,12]"),
        (("node001", "node002", "node016"), "node[001-002,016]"),
        (("node098", "node099", "node100"), "node[098-100]"),
        (("n9", "n09"), "n09,n9"),
        (("n1-ib.cluster", "n2-ib.cluster"), "n[1-2]-ib.cluster"),
        (("r1n1", "r1n2", "r2n1"), "r1n[1-2],r2n1"),
        (("gpu1", "gpu1"), "gpu1"),
    ],
)
def test_hosts_are_written_as_slurm_writes_them(hosts: tuple[str, ...], written: str):
    assert host_list(hosts) == written


@settings(deadline=None)
@given(st.sets(st.from_regex(r"[a-c]{1,2}[0-9]{0,3}", fullmatch=True), max_size=30))
def test_every_written_host_can_be_read_back(hosts: set[str]):
    assert _read_back(host_list(hosts)) == hosts


def _read_back(written: str) -> set[str]:
    found: set[str] = set()
    for part in filter(None, written.replace("[", " ").replace("]", "|").split("|")):
        before, _, inside = part.lstrip(",").rpartition(" ")
        plain, _, head = before.rpartition(",") if before else ("", "", "")
        if not before:
            found |= set(filter(None, inside.split(",")))
            continue
        found |= set(filter(None, plain.split(",")))
        for span in inside.split(","):
            first, _, last = span.partition("-")
            found |= {f"{head}{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)}
    return found


@settings(deadline=None)
@given(st.sets(st.integers(0, 300)))
def test_ranks_are_read_back_as_they_were_written(ranks: set[int]):
    written = rank_list(ranks)
    assert not ranks or ranks_of(written) == tuple(sorted(ranks))


@pytest.mark.parametrize("written", ["", "x", "3-1", "-1", "1,", "1--2", "0-9999999999", "1;2"])
def test_what_is_no_list_of_ranks_is_told_with_an_example(written: str):
    with pytest.raises(ConfigError, match="write 3 or 0-7,12"):
        ranks_of(written)


def test_a_list_that_stands_for_too_many_ranks_is_refused_before_it_is_made():
    assert len(ranks_of("0-999999")) == 1_000_000
    with pytest.raises(ConfigError, match="more than 1000000 ranks"):
        ranks_of("0-1000000")
