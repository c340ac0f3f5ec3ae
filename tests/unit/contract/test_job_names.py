"""The one form of job names: slashes stay, hostile texts are harmless, and two names never become one."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ncclwatch.contract import config, job_names

HOSTILE = ("..", ".", "../../etc", "/", "//", "a//b", "/a", "a/", "a/../b", "a/ranks", "x" * 300, "a\tb", "a\x00b",
           "a\u202eb", "\ud8ff", "𠀀" * 80, "a/" * 40, "%2F" * 27)  # fmt: skip
NAMES = ("run", "team-a/run-1", "team-a/sub/run.2", "数/学", "run 1", ".hidden", "agent.json", "a%2Fb", "report",
         "none", "j" * config.JOB_CHARS_MAX, "localhost-29500", "slurm-7.0")  # fmt: skip

ALIKE = (
    ("a\tb", "a\x00b"),
    ("a\tb", "a_b"),
    ("x" * 300, "x" * 301),
    ("a//b", "a/_/b"),
    ("", "job"),
)  # but for a digest


@pytest.mark.parametrize("name", NAMES)
def test_a_good_name_is_left_as_it_is(name: str) -> None:
    assert job_names.canonical(f" {name}\n") == name


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_becomes_a_harmless_one_of_its_own(text: str) -> None:
    name = job_names.canonical(text)
    assert name != text
    assert job_names.is_canonical(name)
    assert job_names.canonical(name) == name
    assert len({job_names.canonical(other) for other in HOSTILE}) == len(HOSTILE)


@given(st.text(), st.text())
@example(*ALIKE[0])
@example(*ALIKE[1])
@example(*ALIKE[2])
@example(*ALIKE[3])
@example(*ALIKE[4])
def test_two_names_stay_two_in_every_form(one: str, other: str) -> None:
    names = {job_names.canonical(text) for text in (one, other)}
    assert len(names) == len({one.strip(), other.strip()})
    assert len({job_names.to_directory(name) for name in names}) == len(names)


@given(st.text() | st.sampled_from((*NAMES, *HOSTILE)))
def test_a_directory_says_the_name_of_its_job_and_is_one_component_of_a_path(text: str) -> None:
    name = job_names.canonical(text)
    directory = job_names.to_directory(name)
    assert job_names.from_directory(directory) == name
    assert not set("/.\0") & set(directory)
    assert 0 < len(directory.encode()) <= 255


def test_a_namespace_stands_before_the_first_slash() -> None:
    assert [job_names.namespace(name) for name in ("a/b/c", "a", "")] == ["a", "", ""]


def test_the_launcher_names_a_job_that_its_user_did_not() -> None:
    assert job_names.from_environment({"NCCLWATCH_JOB": " team/run "}) == "team/run"
    assert job_names.from_environment({"SLURM_JOB_ID": "7"}) == "slurm-7.0"
    assert job_names.from_environment({"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "1"}) == "localhost-1"


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"NCCLWATCH_JOB": "team/run", "MASTER_PORT": "1"}, True),
        ({"SLURM_JOB_ID": "7"}, True),
        ({"TORCHELASTIC_RUN_ID": "42"}, True),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "1"}, False),
        ({"NCCLWATCH_JOB": "  "}, False),
    ],
)
def test_an_address_is_no_name(environ: dict[str, str], named: bool) -> None:
    assert job_names.is_named(environ) is named


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({}, "master-29500"),
        ({"NCCLWATCH_NAMESPACE": "team-a"}, "team-a/master-29500"),
        ({"NCCLWATCH_NAMESPACE": " team-a/ ", "NCCLWATCH_JOB": "run-1"}, "team-a/run-1"),
        ({"NCCLWATCH_NAMESPACE": "team-a", "NCCLWATCH_JOB": "team-a/run-1"}, "team-a/run-1"),
        ({"NCCLWATCH_NAMESPACE": "team-a", "NCCLWATCH_JOB": "team-b/run-1"}, "team-a/team-b/run-1"),
        ({"NCCLWATCH_NAMESPACE": "team-a", "SLURM_JOB_ID": "7"}, "team-a/slurm-7.0"),
        ({"NCCLWATCH_NAMESPACE": "team-a", "TORCHELASTIC_RUN_ID": "r"}, "team-a/r"),
    ],
)
def test_a_namespace_in_the_environment_is_the_one_of_all_jobs(said: dict[str, str], name: str) -> None:
    environ = {"MASTER_ADDR": "master", "MASTER_PORT": "29500", **said}
    assert job_names.from_environment(environ) == name
    assert job_names.namespace(name) == said.get("NCCLWATCH_NAMESPACE", "").strip(" /")


@pytest.mark.parametrize("length", [1, 50, 61, 62, 63])
def test_a_long_namespace_is_kept_and_two_jobs_in_it_stay_two(length: int) -> None:
    space = "n" * length
    names = {job_names.in_namespace(text, {"NCCLWATCH_NAMESPACE": space}) for text in ("run-1", "run-2" * 20, "x" * 80)}
    assert len(names) == 3
    assert all(job_names.is_canonical(name) and job_names.namespace(name) == space for name in names)
