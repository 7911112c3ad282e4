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
    content_type, _, parameters = kind.partition(";")
    content_type = content_type.strip().lower()
    charset_match = _CHARSET.search(parameters[:1024])
    header_charset = charset_match[1] if charset_match else ""
    if content_type == "text/plain":
        decoded_text = _decode(content, header_charset)
    elif content_type in ("text/html", "application/xhtml+xml"):
        page_charset = _CHARSET.search(content[:1024].decode("ascii", "replace"))
        decoded_text = _decode(content, header_charset or (page_charset[1] if page_charset else ""), is_page=True)
        decoded_text = shown_text(decoded_text, is_xml=content_type == "application/xhtml+xml")
    elif content_type in ("text/rtf", "application/rtf"):
        decoded_text = rtf_text(content)
    elif not content_type:
        raise Unreadable("its attachment states no content type")
    else:
        raise Unreadable(
            f"{content_type} is not read"
            if _KIND.fullmatch(content_type)
            else "its attachment's content type is not read"
        )
    if not decoded_text.strip():
        raise Unreadable("its attachment has no text")
    if len(decoded_text.encode("utf-8", "replace")) > LARGEST_TEXT_BYTES:
        raise Unreadable("its text is longer than 4 MiB")
    return decoded_text


def _decode(content: bytes, charset: str, *, is_page: bool = False) -> str:
    marked_charset = next(
        (charset_name for byte_order_mark, charset_name in _MARKS if content.startswith(byte_order_mark)), ""
    )
    try:
        codec = codecs.lookup(marked_charset or charset or "utf-8").name
        if codec in _NO_CHARSETS:
            raise LookupError
        return content.decode(_AS_BROWSERS.get(codec, codec) if is_page else codec)
    except (UnicodeError, LookupError):
        raise Unreadable("its attachment is not in the character set that it states, or in UTF-8") from None
