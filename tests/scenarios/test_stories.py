"""Each story as a server lives through it: what it shows at each moment, and what becomes of its incidents.

`pytest tests/scenarios --rewrite` writes what it shows now; read the diff before you believe it.
"""

from pathlib import Path

import pytest

from tests.scenarios.story import told
from tests.scenarios.texts import SEPARATOR, STORIES


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_server_shows_what_the_story_expects(path: Path, request: pytest.FixtureRequest):
    given, _, expected = path.read_text().partition(SEPARATOR)
    shown = told(given)
    if request.config.getoption("--rewrite"):
        path.write_text(given + SEPARATOR + shown)
    assert shown == expected or request.config.getoption("--rewrite")


def test_there_are_stories_and_each_has_a_title():
    assert len(STORIES) > 4
    assert all(path.read_text().startswith("# ") for path in STORIES)
