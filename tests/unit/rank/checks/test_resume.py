"""A resume with another number of ranks is told where the command line names the checkpoint, and no other start is."""

from pathlib import Path

import pytest

from ncclwatch.rank.checks import resume


def checkpoint(directory: Path, count: int, name: str = "rng_state_{}.pth") -> str:
    for rank in range(count):
        (directory / name.format(rank)).touch()
    (directory / "optimizer.pt").touch()
    return str(directory)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("train.py", "--resume_from_checkpoint", "/c"), "/c"),
        (("train.py", "--resume=/c"), "/c"),
        (("train.py", "--trainer.resume-from", "/c"), "/c"),
        (("train.py", "--resume"), ""),
        (("train.py", "--model_name_or_path", "/c"), ""),  # weights alone: nothing is resumed
        (("resume.py", "/c"), ""),
    ],
)
def test_only_an_option_about_resuming_names_a_checkpoint(argv: tuple[str, ...], named: str):
    assert resume.checkpoint_of(argv) == named


@pytest.mark.parametrize("name", ["rng_state_{}.pth", "random_states_{}.pkl"])
def test_more_ranks_than_files_are_told_with_those_that_have_none(name: str, tmp_path: Path):
    said = resume.compare(checkpoint(tmp_path, 2, name), 4)
    assert "random states of 2 ranks and this run has 4: there is none for ranks 2-3" in said


def test_fewer_ranks_than_files_are_told(tmp_path: Path):
    assert "those of 3 ranks are left over" in resume.compare(checkpoint(tmp_path, 4), 1)


@pytest.mark.parametrize("count", [0, 3])
def test_as_many_files_as_ranks_or_none_at_all_are_no_news(count: int, tmp_path: Path):
    assert resume.compare(checkpoint(tmp_path, count), 3) == ""


@pytest.mark.parametrize(("local_world", "told"), [(2, False), (4, True), (1, True), (0, True)])
def test_a_directory_with_the_ranks_of_this_node_may_be_its_own(local_world: int, told: bool, tmp_path: Path):
    assert bool(resume.compare(checkpoint(tmp_path, 2), 4, local_world)) is told


def test_a_file_that_is_missing_in_the_middle_is_told(tmp_path: Path):
    directory = checkpoint(tmp_path, 3)
    (tmp_path / "rng_state_1.pth").unlink()
    assert "none for rank 1" in resume.compare(directory, 3)


def test_a_checkpoint_that_cannot_be_listed_is_the_program_s_to_tell(tmp_path: Path):
    said: list[str] = []
    resume._tell(str(tmp_path / "nowhere"), 2, 0, lambda sentence, subject: said.append(sentence))
    resume._tell(checkpoint(tmp_path, 1), 2, 2, lambda sentence, subject: said.append(sentence))
    assert len(said) == 1
