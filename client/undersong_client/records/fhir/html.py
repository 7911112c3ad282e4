"""Reads the text that a browser shows for an HTML or XHTML document.

Source: the HTML standard (html.spec.whatwg.org), 13.2.5, tokenization. Only what decides about shown text is modelled.
Text in a ``head`` needs no rule of its own: it ends the head, so a browser shows it in the body.
"""

import re
from html import unescape

from undersong_client.records.fhir.unreadable import Unreadable

_BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "caption",
        "center",
        "dd",
        "details",
        "dialog",
        "dir",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hgroup",
        "hr",
        "html",
        "legend",
        "li",
        "listing",
        "main",
        "menu",
        "nav",
        "ol",
        "optgroup",
        "option",
        "p",
        "plaintext",
        "pre",
        "search",
        "section",
        "summary",
        "table",
        "tbody",
        "tfoot",
        "thead",
        "tr",
        "ul",
        "xmp",
    ]
)
# Elements whose content holds no tags: nothing ends it but their own end tag.
_UNSEEN = frozenset(("iframe", "noembed", "noframes", "script", "style", "title"))
_SEEN = frozenset(("textarea", "xmp"))
_ENDS = {tag: re.compile(rf"</{tag}(?=[\t\n\f\r />])", re.IGNORECASE) for tag in _UNSEEN | _SEEN}
_PREFORMATTED = frozenset(("listing", "pre", "xmp", "plaintext", "textarea"))
_SPACE = re.compile(r"[\t\n\f\r ]+")
# A quote counts only where a value begins. The quantifiers are possessive, so that a tag without end is tried once.
_TAG = re.compile(
    r"""<(/?)([a-zA-Z][^\t\n\f\r />]*+)"""
    r"""(?:[\t\n\f\r /]++|[^\t\n\f\r />][^\t\n\f\r />=]*+"""
    r"""(?:[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:"[^"]*+"|'[^']*+'|(?!["'])[^\t\n\f\r >]*+)|(?![\t\n\f\r ]*+=)))*+>"""
)
_COMMENT_END = re.compile(r"--!?>")
_CDATA = "<![CDATA["


def shown_text(html: str, *, is_xml: bool = False) -> str:
    """Returns the text that a browser shows, one block a line, in time linear in the length.

    Args:
        is_xml: True for XHTML, where ``<tag/>`` is a whole element and CDATA is text.

    Raises Unreadable where a comment, a CDATA section or a quoted value never ends, because a browser would show
    nothing after it.
    """
    page = _Page(html, is_xml)
    page.read()
    page_lines = ("".join(page.parts)).split("\n")
    return "\n".join(filter(None, (" ".join(page_line.split()) for page_line in page_lines)))


class _Page:
    """A document that is being read: the parts of its text so far."""

    def __init__(self, html: str, is_xml: bool) -> None:
        self.parts: list[str] = []
        self._html = html
        self._is_xml = is_xml
        self._position = 0
        self._preformatted_depth = 0
        self._template_depth = 0

    def read(self) -> None:
        page_html = self._html
        while (tag_start := page_html.find("<", self._position)) >= 0:
            next_sign = page_html[tag_start + 1 : tag_start + 2]
            if not (next_sign in ("/", "!", "?") or (next_sign.isascii() and next_sign.isalpha())):
                self._show(page_html[self._position : tag_start + 1])
                self._position = tag_start + 1
                continue
            self._show(page_html[self._position : tag_start])
            self._position = tag_start
            if next_sign.isalpha() or (next_sign == "/" and page_html[tag_start + 2 : tag_start + 3].isalpha()):
                self._read_tag()
            else:
                self._read_declaration()
        self._show(page_html[self._position :])

    def _show(self, text: str, *, is_raw: bool = False) -> None:
        if text and not self._template_depth:
            visible_text = text if is_raw else unescape(text)
            self.parts.append(visible_text if self._preformatted_depth else _SPACE.sub(" ", visible_text))

    def _read_declaration(self) -> None:
        """Skips a comment, doctype, processing instruction or nameless end tag; shows a CDATA section of XHTML."""
        page_html = self._html
        declaration_start = self._position
        if page_html.startswith("<!--", declaration_start):
            # "<!-->" and "<!--->" are whole comments: their hyphens begin and end it.
            comment_end = _COMMENT_END.search(page_html, declaration_start + 2)
            if comment_end is None:
                raise Unreadable("its HTML has a comment that does not end")
            self._position = comment_end.end()
        elif self._is_xml and page_html.startswith(_CDATA, declaration_start):
            data_end = page_html.find("]]>", declaration_start)
            if data_end < 0:
                raise Unreadable("its HTML has a CDATA section that does not end")
            self._show(page_html[declaration_start + len(_CDATA) : data_end], is_raw=True)
            self._position = data_end + 3
        else:
            tag_end = page_html.find(">", declaration_start)
            if tag_end < 0 and page_html[declaration_start:].strip("</"):
                self._position = len(page_html)
            elif tag_end < 0:
                self._show(page_html[declaration_start:])
                self._position = len(page_html)
            else:
                self._position = tag_end + 1

    def _read_tag(self) -> None:
        page_html = self._html
        tag_match = _TAG.match(page_html, self._position)
        if tag_match is None:
            if ">" in page_html[self._position :]:
                raise Unreadable("its HTML has a tag whose quotes do not end")
            self._position = len(page_html)  # The document ends within a tag, which a browser does not show.
            return
        self._position = tag_match.end()
        tag_name = tag_match[2].lower()
        is_end = bool(tag_match[1])
        is_self_closing = self._is_xml and page_html[tag_match.end() - 2] == "/"
        if tag_name in _BLOCKS:
            self.parts.append("\n")
        elif tag_name in ("td", "th") and not is_end:
            self.parts.append(" ")
        if is_self_closing:
            return
        if tag_name in _PREFORMATTED:
            self._preformatted_depth = max(0, self._preformatted_depth + (-1 if is_end else 1))
        elif tag_name == "template":
            self._template_depth = max(0, self._template_depth + (-1 if is_end else 1))
        if not is_end and tag_name in _ENDS and not (self._is_xml and tag_name in _SEEN):
            self._read_content(tag_name)
        elif not is_end and tag_name == "plaintext":
            self._show(page_html[self._position :], is_raw=True)
            self._position = len(page_html)

    def _read_content(self, tag_name: str) -> None:
        """Reads the content of an element that holds no tags, and shows it where a browser would."""
        end_tag = _ENDS[tag_name].search(self._html, self._position)
        if end_tag:
            content_end = end_tag.start()
        else:
            content_end = len(self._html)
        if tag_name in _SEEN:
            self._show(self._html[self._position : content_end], is_raw=tag_name == "xmp")
        self._position = content_end
