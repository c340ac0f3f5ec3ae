"""A user name, a password or a token in a URL is neither shown nor kept."""

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.network.urls import check, hidden

WITHOUT = [
    ("http://x:1", "http://x:1"), ("http://u:p@x:1/y", "http://x:1/y"), ("http://u@x", "http://x"), ("u:p@x:1", "x:1"),
    ("https://u:a@b@x", "https://x"), ("http://u:a/b@x:1", "http://x:1"), ("http://[u:p@x", "http://x"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "without"), WITHOUT)
def test_what_stands_before_the_host_is_left_out(url: str, without: str) -> None:
    assert config.without_credentials(url) == without
    assert config.server_url({"NCCLWATCH_SERVER": url}) == without


@pytest.mark.parametrize(("url", "without"), WITHOUT)
def test_the_command_line_refuses_a_url_with_a_password_without_repeating_it(url: str, without: str) -> None:
    if url == without:
        assert check(url, "--server") == url
        return
    with pytest.raises(ConfigError, match="--server names the server with a user name") as refused:
        check(url, "--server")
    assert url not in str(refused.value) and "NCCLWATCH_TOKEN" in str(refused.value)


def test_what_a_text_repeats_of_a_secret_is_hidden_and_what_is_short_is_no_secret() -> None:
    assert hidden("no /hooks/T0K3N here", "T0K3N", "/", "") == "no /hooks/*** here"
