"""How tokens are written down, and which one is shown."""

from pathlib import Path

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.network import tokens


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
        ("s3cret forever", "only host, job, jobs, name, namespace, ranks, until, each once"),
        ("s3cret name=", "only host, job, jobs, name, namespace, ranks, until, each once"),
        ("s3cret host=a host=b", "each once"),
        ("s3cret jobs=many", "jobs=many is no number"),
        ("s3cret ranks=-1", "ranks=-1 is no number of ranks; write ranks=50"),
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


def test_a_token_of_an_agent_is_bound_to_jobs_namespaces_hosts_and_a_number_of_jobs() -> None:
    (token,) = tokens.parse("s3cret job=team-a/x*,y namespace=team-? host=gpu-a-* jobs=50 ranks=20000", "x")
    allowed = [
        name for name in ("team-a/x1", "team-a/z", "y", "team-ab/x", "team-b/x1") if token.bounds.allow_job(name)
    ]
    assert allowed == ["team-a/x1"]
    assert [host for host in ("gpu-a-1", "gpu-b-1", "") if token.bounds.allow_host(host)] == ["gpu-a-1"]
    assert (token.bounds.jobs_max, token.bounds.ranks_max) == (50, 20_000)
    assert str(token.bounds) == "job=team-a/x*,y namespace=team-? host=gpu-a-*"


def test_a_job_without_a_namespace_is_in_none() -> None:
    (token,) = tokens.parse("s3cret namespace=team-a", "x")
    assert [name for name in ("team-a/x", "team-a", "x", "/x") if token.bounds.allow_job(name)] == ["team-a/x"]


def test_a_token_that_is_bound_to_nothing_allows_everything() -> None:
    (token,) = tokens.parse("s3cret name=alice", "x")
    assert token.bounds == tokens.UNBOUND
    assert token.bounds.allow_job("any") and token.bounds.allow_host("")
