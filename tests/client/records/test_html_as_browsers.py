"""The reader of HTML shows what a parser of the HTML standard (html5lib) has in the body."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples
from undersong_client.records.fhir.html import _BLOCKS, shown_text
from undersong_client.records.fhir.unreadable import Unreadable

html5lib = pytest.importorskip("html5lib")
UNSEEN = frozenset(("script", "style", "title", "template", "iframe", "noembed", "noframes"))
TAGS = (
    "p", "div", "br", "b", "i", "span", "a", "td", "tr", "table", "ul", "li", "pre", "h1", "head", "body", "html",
    "script", "style", "title", "textarea", "template", "section", "unknown", "noembed",
)  # fmt: skip
PIECES = st.sampled_from(
    [*(f"<{tag}>" for tag in TAGS), *(f"</{tag}>" for tag in TAGS), "<p class='a > b'>", '<a title="</a>">', "<br/>",
     "<!-- a comment -->", "<!doctype html>", "<?xml version='1.0'?>", "&lt;", "&amp;amp;", "&auml", "&#x80;",
     "&nosuch;", "words", "zwei Wörter", " ", "\n", "<", "< 5", "a<b", "</>", "<!-->", "<![CDATA[x]]>"]
)  # fmt: skip


def letters(text):
    """The characters of a text without white space: layout is not compared."""
    return re.sub(r"\s+", "", text)


def by_standard(html):
    """The text of the body, without what no browser shows."""
    tree = html5lib.parse(html, treebuilder="etree", namespaceHTMLElements=False)
    parts = []

    def walk(element):
        if element.tag in UNSEEN or not isinstance(element.tag, str):
            return
        parts.append(element.text or "")
        for child in element:
            walk(child)
            parts.append(child.tail or "")

    walk(tree.find("body"))
    return "".join(parts)


@pytest.mark.heavy
@settings(max_examples=examples(30, 100), deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_html_text_has_the_letters_that_a_standard_parser_finds(html):
    assert sorted(letters(shown_text(html))) == sorted(letters(by_standard(html)))


def test_block_elements_of_html_separate_words_and_others_do_not():
    assert {"p", "div", "tr", "li"} <= _BLOCKS
    assert shown_text("a<b>b</b><p>c</p>d").split() == ["ab", "c", "d"]


@pytest.mark.parametrize(
    ("html", "words"),
    [("a<!-- b", "a comment that does not end"), ("a<![CDATA[ b", "a CDATA section that does not end")],
)
def test_xhtml_with_an_unterminated_section_is_refused_by_its_kind(html, words):
    with pytest.raises(Unreadable, match=words):
        shown_text(html, is_xml=True)
