"""Links to logs: what is put into the template is quoted, and a template that cannot work is refused at the start."""

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch_server.ui.log_links import check_log_url, log_url


def test_all_that_is_known_is_put_in_and_quoted():
    template = check_log_url("https://logs/?q={job}&h={host}&r={rank}&p={pid}&a={from_s}&b={to_s}")
    found = log_url(template, at=1000.5, job="a/b&c", host="gpu 7", rank="3", pid="12")
    assert found == "https://logs/?q=a%2Fb%26c&h=gpu%207&r=3&p=12&a=400&b=1060"


def test_without_a_template_there_is_no_link():
    assert log_url(check_log_url(""), at=0.0, job="a") == ""


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("javascript:alert(1)", "begins with https://"),
        ("https://logs/{node}", r"names \{node\}; what can be put in is \{job\}, \{host\}"),
        ("https://logs/{job", "cannot be read"),
        ("https://logs/{job.__class__}", "names"),
        ("https://logs/{}", "names"),
        ("https://logs/{rank:d}", r"has a format in \{rank\}; write \{rank\} alone"),
        ("https://logs/{job!r}", "has a format"),
        ("https://logs/{job:{host}}", "has a format"),
    ],
)
def test_a_template_that_cannot_work_is_refused(template: str, reason: str):
    with pytest.raises(ConfigError, match=reason):
        check_log_url(template)
