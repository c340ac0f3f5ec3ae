"""An incident as Markdown and HTML: complete, and harmless whatever ranks have called their files and functions."""

import html.parser
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ncclwatch.cli.client.answers import Whole
from ncclwatch.cli.commands.report import written
from ncclwatch.cli.output.report_html import html as as_html
from ncclwatch.cli.output.report_markdown import in_html, markdown, prose
from ncclwatch.contract.model.rank import CallSite, StackFrame
from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Divergence, Evidence, MergedStack
from ncclwatch.contract.words.printable import json_text, one_line

HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "</pre></details><h1>x",
    "[click](javascript:alert(1))", "![x](http://evil/x.png)", "<http://evil>", "http://evil/x", "www.evil.com",
    "```\nout\n```", "````", "| a | b |", "- item", "1. item", "# heading", "> quote", "`code`", "**bold** __b__ ~~s~~",
    "\x1b[31mred\x07", "\u202ereversed", "a\nb\r\nc", "{{ 7*7 }}{% for %}", "]]>", "&lt;b&gt;", "@everyone #12",
    "    four spaces", "=====", "---", "$x$", "\\", "\ud800",
]  # fmt: skip


def incident(text: str) -> Whole:
    """Return an incident in which everything that ranks choose is this text."""
    site = CallSite(file=text, line=7, function=text)
    frames = (
        StackFrame(function=text, file=f"/home/u/{text}.py", line=3),
        StackFrame(function="main", file="/home/u/a.py", line=9),
    )
    return Whole(
        id="0123456789ab", job=text, state="open", cause=Cause.HOST_STALL.value, certainty=Certainty.PROVEN.value,
        severity="critical", summary=text, explanation=text, advice=text,
        culprits=(Culprit(rank=3, host=text, pid=12, device=text, call_site=site, doing=text),),
        victims=(0, 1, 2), group=text, seq=5, op="all_reduce",
        first_divergence=Divergence(
            group=text, seq=4, culprit_op=text, culprit_site=site, victim_op=text, victim_site=site, fact=text
        ),
        onset_to_open_s=2.5, explains=(3, 3), evidence=(Evidence(source="proc", rank=3, fact=text),),
        stacks=(MergedStack(ranks=(0, 1, 2), thread=text, frames=frames),), opened_at="2026-11-21T10:00:00+00:00",
        where=text, stack_tree=(text, f"0-2  {text}"),
    )  # fmt: skip


class Tags(html.parser.HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # Whether a frame is marked as the user's own follows from its path.
        self.seen.append((tag, tuple(name for name, _ in attrs if name != "class")))

    def handle_data(self, data: str) -> None:
        self.text += data


def tags(page: str) -> Tags:
    found = Tags()
    found.feed(page)
    return found


def page_of(text: str) -> str:
    return as_html(incident(text), b'{"summary": "x"}')


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_adds_or_takes_an_element_of_the_html(text: str):
    assert tags(page_of(text)).seen == tags(page_of("harmless")).seen


@settings(deadline=None, max_examples=60)
@given(st.text(min_size=1, max_size=40))
def test_whatever_the_text_html_and_markdown_keep_their_shape(text: str):
    assert tags(page_of(text)).seen == tags(page_of("harmless")).seen
    assert _shape(markdown(incident(text))) == _shape(markdown(incident("harmless")))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_adds_or_takes_an_element_of_the_markdown(text: str):
    assert _shape(markdown(incident(text))) == _shape(markdown(incident("harmless")))


def _shape(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the elements that a tracker would make of Markdown, HTML allowed."""
    rendered = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)
    return tags(rendered).seen


def test_the_text_itself_is_there_for_people_to_read():
    text = "<b>train</b> &lt; & [co](x) `rank_3` 'quoted'"
    assert text in tags(page_of(text)).text
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(f"- {prose(text)}")
    assert text in tags(rendered).text
    assert tags(in_html(text)).text == text


def test_nothing_of_the_html_comes_from_elsewhere_and_nothing_may_run():
    page = page_of("harmless")
    assert "default-src 'none'" in page
    found = tags(page).seen
    assert not {tag for tag, _ in found} & {"script", "link", "img", "iframe", "object", "form", "a", "base"}
    assert not {name for _, names in found for name in names} & {"src", "href", "srcset", "onclick", "style"}


@pytest.mark.parametrize("text", ["\x1b[31m", "\u202e", "\x9b31m", "\x07", "\ud800"])
def test_escapes_of_terminals_and_turned_writing_are_in_no_report(text: str):
    data = msgspec.json.encode({"summary": text.encode("utf-8", "replace").decode()})
    for made in (page_of(text), markdown(incident(text)), json_text(data)):
        assert made.isprintable() or all(c.isprintable() or c == "\n" for c in made.replace("\u200b", ""))


def test_a_tracker_makes_no_mention_no_link_and_no_number_of_a_ticket():
    said = prose("@everyone see #12 at http://evil and www.evil.com, me@x.org")
    for linked in ("@everyone", "#12", "://", "www.", "@x"):
        assert linked not in said
    assert (
        said.isprintable()
        and said.replace("&#8203;", "") == "@everyone see #12 at http://evil and www.evil.com, me@x.org"
    )


@settings(deadline=None)
@given(st.text())
def test_json_that_is_safe_to_show_means_the_same(text: str):
    shown = json_text(msgspec.json.encode({"a": text.encode("utf-8", "replace").decode()}))
    assert json.loads(shown) == {"a": text.encode("utf-8", "replace").decode()}
    assert all(c.isprintable() or c == "\n" for c in shown)


def test_the_json_in_the_page_is_the_incident():
    data: dict[str, Any] = {"summary": "</pre><b>", "n": [1, 2]}
    page = as_html(incident("x"), json.dumps(data).encode())
    body = tags(page).text
    assert json.loads(body[body.index("{\n") : body.rindex("}") + 1]) == data


def test_a_saved_incident_is_plain_text_on_a_terminal():
    said = msgspec.json.decode(msgspec.json.encode(incident("all_reduce under `if rank == 0`, operation #12")))
    plain = written(msgspec.json.encode(said), "text", None)
    assert plain.startswith(
        "ncclwatch: CRITICAL all_reduce under `if rank == 0`, operation #12\n  why       all_reduce under"
    )
    assert "\\" not in plain and "**" not in plain and plain.isascii()


def test_all_forms_say_everything_that_matters():
    seen = incident("plain")
    for made in (written(msgspec.json.encode(seen), form, None) for form in ("html", "md", "text")):
        text = " ".join((tags(made).text if made.startswith("<!doctype") else made).replace("\\", "").split())
        for part in (
            "CRITICAL plain", "0123456789ab", "ranks 0-2", "PROVEN; reported 2.5 s",
            "plain:7 in plain()", "rank 3: plain (proc)", "Number 4 of group plain", "main (/home/u/a.py:9)",
            "0-2 plain",
        ):  # fmt: skip
            assert part in text, part
        assert "Who keeps the others waiting" in text or "culprit rank 3, host plain, pid 12" in text


def test_what_became_of_a_hang_after_a_restart_is_in_all_forms():
    raw = msgspec.json.decode(msgspec.json.encode(incident("x"))) | {"recovered_after_s": 41.0, "came_back_as": "b2"}
    raw |= {"lost_s": 360.0, "world_size": 8}
    for form in ("html", "md", "text"):
        made = written(msgspec.json.encode(raw), form, None)
        assert "recovered after 41 s; came back as b2" in made
        assert "6 min of 8 ranks: 0.8 rank-hours" in made


def test_one_of_several_culprits_is_not_called_the_culprit():
    raw = msgspec.json.decode(msgspec.json.encode(incident("x"))) | {"one_of": True}
    assert "One of these keeps the others waiting" in written(msgspec.json.encode(raw), "md", None)


def test_what_is_shown_in_one_line_is_one_line_and_hides_nothing():
    assert one_line("a\tb\nc\x1b[0m\u2028d") == r"a b c\x1b[0m d"
