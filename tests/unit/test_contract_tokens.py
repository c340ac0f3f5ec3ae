"""How tokens are written down, and which one is shown."""

from pathlib import Path

import pytest

from ncclwatch.contract import tokens
from ncclwatch.contract.errors import ConfigError


def test_the_client_shows_the_first_token_that_counts_and_never_what_stands_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("gone until=2001-01-01\nnow name=x until=2999-01-01T00:00+02:00\nlater\n")
    assert tokens.shown_by_agent({"NCCLWATCH_TOKEN_FILE": str(path)}) == "now"
    assert tokens.shown_by_agent({"NCCLWATCH_TOKEN": "gone until=2001-01-01"}) == "gone"
    assert tokens.shown_by_agent({}) == ""


def test_each_side_prefers_the_token_that_is_meant_for_it() -> None:
    environ = {"NCCLWATCH_TOKEN": "all", "NCCLWATCH_AGENT_TOKEN": "a", "NCCLWATCH_VIEWER_TOKEN": "v"}
    assert tokens.shown_by_agent(environ) == "a"
    assert tokens.shown_by_reader(environ) == "v"
    assert tokens.shown_by_reader({**environ, "NCCLWATCH_OPERATOR_TOKEN": "o"}) == "o"
    assert tokens.shown_by_reader({"NCCLWATCH_TOKEN": "all", "NCCLWATCH_AGENT_TOKEN": "a"}) == "all"
    assert tokens.shown_by_reader({"NCCLWATCH_AGENT_TOKEN": "a"}) == "a"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("s3cret until=tomorrow", "until=tomorrow is no time"),
        ("s3cret forever", "only name=WHO and until=TIME"),
        ("s3cret name=", "only name=WHO and until=TIME"),
        ("\n".join(["s3cret"] * 1001), "at most 1000"),
    ],
)
def test_what_is_written_wrongly_is_a_sentence_without_the_secret(line: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        tokens.parse(line, "NCCLWATCH_TOKEN")
    assert "s3cret" not in str(raised.value)


def test_a_token_does_not_show_itself_in_logs() -> None:
    (token,) = tokens.parse("s3cret name=alice", "x")
    assert "s3cret" not in f"{token} {token!r}"
    assert token.secret == "s3cret"
