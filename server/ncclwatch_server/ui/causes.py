"""Makes pages of the documentation about causes: a verdict links to the page of its cause on the same server."""

from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.cause_pages import cause_of, page_of, slug_of


@cache
def cause_html(cause: Cause) -> Markup:
    """Return the page about a cause. Links to other causes lead to their pages, all others are plain text."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(page_of(cause))
    for token in tokens:
        if token.children:
            token.children = _linked(token.children)
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _linked(tokens: list[Token]) -> list[Token]:
    kept: list[Token] = []
    lasting = True  # of links, which never lie in one another
    for token in tokens:
        if token.type == "link_open":
            other = cause_of(str(token.attrs.get("href", "")).removesuffix(".md"))
            lasting = other is not None
            token.attrs = {"href": f"/causes/{slug_of(other)}"} if other is not None else {}
        if lasting or token.type not in ("link_open", "link_close"):
            kept.append(token)
    return kept
