"""Turns the bytes of an attachment into text, by its content type and character set."""

import codecs
import re

from undersong_client.records.fhir.html import shown_text
from undersong_client.records.fhir.rtf import rtf_text
from undersong_client.records.fhir.unreadable import Unreadable
from undersong_common.text.table import LARGEST_TEXT_BYTES

_CHARSET = re.compile(r"(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_NO_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")  # codecs of Python alone
_AS_BROWSERS = {"iso8859-1": "cp1252", "ascii": "cp1252"}  # pages say Latin-1 and mean Windows' set
_KIND = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,60}")
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def plain_text(kind: str, content: bytes) -> str:
    """Returns the text of an attachment of a content type. Raises Unreadable, also for a text above 4 MiB."""
    name, _, parameters = kind.partition(";")
    name = name.strip().lower()
    charset = _CHARSET.search(parameters[:1024])
    header_charset = charset[1] if charset else ""
    if name == "text/plain":
        text = _characters(content, header_charset)
    elif name in ("text/html", "application/xhtml+xml"):
        page_charset = _CHARSET.search(content[:1024].decode("ascii", "replace"))
        text = _characters(content, header_charset or (page_charset[1] if page_charset else ""), is_page=True)
        text = shown_text(text, is_xml=name == "application/xhtml+xml")
    elif name in ("text/rtf", "application/rtf"):
        text = rtf_text(content)
    elif not name:
        raise Unreadable("its attachment states no content type")
    else:
        raise Unreadable(
            f"{name} is not read" if _KIND.fullmatch(name) else "its attachment's content type is not read"
        )
    if not text.strip():
        raise Unreadable("its attachment has no text")
    if len(text.encode("utf-8", "replace")) > LARGEST_TEXT_BYTES:
        raise Unreadable("its text is longer than 4 MiB")
    return text


def _characters(content: bytes, charset: str, *, is_page: bool = False) -> str:
    marked = next((name for mark, name in _MARKS if content.startswith(mark)), "")
    try:
        codec = codecs.lookup(marked or charset or "utf-8").name
        if codec in _NO_CHARSETS:
            raise LookupError
        return content.decode(_AS_BROWSERS.get(codec, codec) if is_page else codec)
    except (UnicodeError, LookupError):
        raise Unreadable("its attachment is not in the character set that it states, or in UTF-8") from None
