"""The table in tests/README.md lists the files of live tests as they are."""

from tests import overview


def test_every_file_of_live_tests_is_listed_with_what_it_shows():
    assert overview.listed() == {file: overview.sentence(file) for file in overview.files()}, (
        "run `python -m tests.overview` and commit tests/README.md"
    )
