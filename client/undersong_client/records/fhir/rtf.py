"""Reads the text of an RTF attachment: what its reader shows, in the code page that it states.

striprtf turns RTF into text. What it does not know, or what differs between its releases, is settled on the raw bytes
before: code pages and fonts, characters outside ASCII, hidden and deleted text, binary data, field instructions, and
several documents in one file.

Source: Rich Text Format Specification 1.9.1.
"""

import codecs
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from undersong_client.records.fhir.unreadable import Unreadable

_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?[0-9]{1,10})? ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|([\x80-\xff])"
    rb"|([^\\{}\x80-\xff]+)|\\",
    re.DOTALL,
)
_START = re.compile(rb"\{\s*\\rtf")
_LINE_ENDS = re.compile(rb"[\r\n\0]+")
_CHARACTER_SETS = {b"ansi": "cp1252", b"mac": "mac_roman", b"pc": "cp437", b"pca": "cp850"}
_CODE_PAGES = {10000: "mac_roman", 10007: "mac_cyrillic", 10029: "mac_latin2", 65001: "utf-8"}
# Groups whose content is no text of the document. striprtf knows the others.
_DROPPED = frozenset((b"fldinst", b"colortbl", b"stylesheet", b"info", b"pict", b"objdata", b"datafield"))
# Words about code pages and fonts, which mean nothing any more once every character is written as a number.
_SETTLED = frozenset((b"ansicpg", b"deff", b"cpg", b"fcharset", b"listtext", *_CHARACTER_SETS))
_CHARACTERS = frozenset(
    b"par sect page line tab emdash endash emspace enspace qmspace bullet lquote rquote ldblquote rdblquote row cell"
    b" nestcell".split()
)


def rtf_text(content: bytes) -> str:
    """Returns the text of all documents in RTF bytes, one after the other.

    Raises Unreadable if the bytes are no RTF, or a document cannot be parsed.
    """
    from striprtf.striprtf import charset_map, rtf_to_text

    try:
        document_texts = [
            str(rtf_to_text(_Document(document_bytes, charset_map).in_ascii()))
            for document_bytes in _documents(content)
        ]
    except Unreadable:
        raise
    except Exception:  # noqa: BLE001 - the parser's exception may hold a piece of the document
        raise Unreadable("its RTF cannot be read") from None
    if not document_texts:
        raise Unreadable("its attachment is not RTF")
    return "\n".join(
        document_text.strip("\n") if len(document_texts) > 1 else document_text for document_text in document_texts
    )


def _tokens(content: bytes, start: int = 0) -> Iterator[re.Match[bytes]]:
    """Yields the tokens of RTF outside binary data, where a byte that looks like a brace opens no group."""
    while token := _TOKEN.match(content, start):
        start = token.end()
        if token[1] == b"bin":
            start += max(0, int(token[2] or 0))
            continue
        yield token


def _documents(content: bytes) -> Iterator[bytes]:
    """Yields each outermost group that is an RTF document."""
    if not content.lstrip(b"\xef\xbb\xbf \t\r\n\0").startswith(b"{"):
        return
    position = 0
    while document_start := _START.search(content, position):
        group_depth = 0
        position = len(content)
        for token in _tokens(content, document_start.start()):
            if token[5]:
                if token[5] == b"{":
                    group_depth += 1
                else:
                    group_depth -= 1
                if group_depth == 0:
                    position = token.end()
                    break
        yield content[document_start.start() : position]


@dataclass(frozen=True)
class _RtfGroup:
    """Properties of the text in one group (``{...}``), which end with the group.

    Attributes:
        font: number of the font; b"" for the document's own.
        skip_count: number of characters after a Unicode character that stand for it in older programs.
        is_hidden, is_deleted: True for text that is not shown, and for text that a revision deleted.
        is_dropped: True in a group that holds no text.
        is_font_table: True in the table of fonts.
    """

    font: bytes = b""
    skip_count: int = 1
    is_hidden: bool = False
    is_deleted: bool = False
    is_dropped: bool = False
    is_font_table: bool = False

    @property
    def is_shown(self) -> bool:
        return not (self.is_hidden or self.is_deleted or self.is_dropped or self.is_font_table)


class _Document:
    """One RTF document, which is written anew in ASCII."""

    def __init__(self, content: bytes, charsets: Mapping[int, str]) -> None:
        self._content = content
        self._charsets = charsets
        self._encoding = "cp1252"
        self._fonts: dict[bytes, str] = {}
        self._default_font = b""
        self._group = _RtfGroup()
        self._outer_groups: list[_RtfGroup] = []
        self._parts: list[str] = []
        self._decoder: codecs.IncrementalDecoder | None = None
        self._high_surrogate = 0
        self._characters_to_skip = 0

    def in_ascii(self) -> str:
        """Returns the document with its characters outside ASCII as numbers, and without what it does not show."""
        rtf_bytes = self._content
        position = 0
        opens_group = False
        while token := _TOKEN.match(rtf_bytes, position):
            position = token.end()
            control_word, control_number, hex_code, control_symbol, brace, plain_byte, plain_text = token.groups()
            if self._decoder is not None and self._is_second_byte(token):
                # The second byte of a character of two bytes may be a letter, a backslash or a brace.
                position = token.start() + 1
                self._add_bytes(rtf_bytes[token.start() : position])
            elif hex_code or plain_byte:
                self._add_bytes(bytes.fromhex(hex_code.decode()) if hex_code else plain_byte)
            elif brace:
                self._end_bytes()
                self._read_brace(brace)
            elif control_word == b"bin":
                position += max(0, int(control_number or 0))
            elif control_word:
                self._end_bytes()
                self._read_word(control_word, control_number, opens_group)
            elif plain_text:
                self._end_bytes()
                self._add_text(plain_text)
            elif control_symbol:
                self._end_bytes()
                self._read_symbol(control_symbol, opens_group)
            opens_group = bool(brace == b"{" or (opens_group and plain_text and not plain_text.strip()))
        self._end_bytes()
        return "".join(self._parts)

    def _is_second_byte(self, token: re.Match[bytes]) -> bool:
        """True if the last character lacks its second byte, and the token begins with it and not with its escape."""
        assert self._decoder is not None
        return bool(self._decoder.getstate()[0]) and not token[3] and token[0][:1] not in b"\r\n"

    def _read_brace(self, brace: bytes) -> None:
        self._characters_to_skip = 0
        if brace == b"{":
            self._outer_groups.append(self._group)
        was_shown = self._group.is_shown
        if brace == b"}":
            if self._outer_groups:
                self._group = self._outer_groups.pop()
            else:
                self._group = _RtfGroup()
        # The braces of a dropped group go with it; those of a hidden one may enclose words that count outside.
        if was_shown or self._group.is_shown or not (self._group.is_dropped or self._group.is_font_table):
            self._parts.append(brace.decode())

    def _change(self, **properties: object) -> None:
        self._group = replace(self._group, **properties)  # type: ignore[arg-type]

    def _read_word(self, word: bytes, number: bytes | None, opens_group: bool) -> None:
        self._characters_to_skip = 0 if word != b"u" else self._characters_to_skip
        current_group = self._group
        is_on = number is None or int(number) != 0
        if current_group.is_font_table:
            self._read_font(word, number)
        elif word == b"v":
            self._change(is_hidden=is_on)
        elif word == b"deleted":
            self._change(is_deleted=is_on)
        elif word == b"plain":
            self._change(is_hidden=False, font=self._default_font)
        elif word == b"f":
            self._change(font=number or b"")
        elif word == b"deff":
            self._default_font = number or b""
            self._change(font=self._default_font)
        elif word == b"uc":
            self._change(skip_count=max(0, int(number or 1)))
        elif word == b"u":
            self._add_unicode(int(number or 0))
        elif word == b"fonttbl":
            self._change(is_font_table=True)
        elif opens_group and word in _DROPPED:
            self._change(is_dropped=True)
        elif word in _CHARACTER_SETS:
            self._encoding = _CHARACTER_SETS[word]
        elif word == b"ansicpg":
            self._encoding = self._code_page(int(number or 0))
        elif word not in _SETTLED and (
            current_group.is_shown or (word not in _CHARACTERS and not current_group.is_dropped)
        ):
            self._parts.append(f"\\{word.decode()}{(number or b'').decode()} ")

    def _code_page(self, page_number: int) -> str:
        """The codec of a code page; 0 and 1 leave it as it is. Raises Unreadable for one that is not known."""
        if page_number in (0, 1):
            encoding_name = self._encoding
        else:
            encoding_name = _CODE_PAGES.get(page_number, f"cp{page_number}")
        try:
            return codecs.lookup(encoding_name).name
        except LookupError:
            raise Unreadable("its RTF states a code page that is not known") from None

    def _read_font(self, word: bytes, number: bytes | None) -> None:
        if word == b"f":
            self._change(font=number or b"")
        elif number and (word == b"cpg" or (word == b"fcharset" and int(number) != 1)):
            if word == b"cpg":
                encoding_name = f"cp{int(number)}"
            else:
                encoding_name = self._charsets.get(int(number), "")
            try:
                self._fonts[self._group.font] = codecs.lookup(encoding_name).name
            except LookupError:  # The document's own code page counts then.
                self._fonts.pop(self._group.font, None)

    def _read_symbol(self, symbol: bytes, opens_group: bool) -> None:
        if symbol == b"*" and opens_group:
            self._change(is_dropped=True)
        elif self._characters_to_skip:
            self._characters_to_skip -= 1
        elif self._group.is_shown:
            self._parts.append("\\par " if symbol in b"\r\n" else f"\\{symbol.decode('latin-1')}")

    def _add_text(self, text: bytes) -> None:
        text = _LINE_ENDS.sub(b"", text)
        skipped_characters = min(self._characters_to_skip, len(text))
        self._characters_to_skip -= skipped_characters
        if self._group.is_shown:
            self._parts.append(text[skipped_characters:].decode("ascii"))

    def _add_bytes(self, encoded_bytes: bytes) -> None:
        if self._characters_to_skip:
            self._characters_to_skip -= 1
        elif self._group.is_shown:
            if self._decoder is None:
                font_encoding = self._fonts.get(self._group.font, self._encoding)
                self._decoder = codecs.getincrementaldecoder(font_encoding)("replace")
            self._add_characters(self._decoder.decode(encoded_bytes))

    def _end_bytes(self) -> None:
        if self._decoder is not None:
            self._add_characters(self._decoder.decode(b"", True))
            self._decoder = None

    def _add_unicode(self, number: int) -> None:
        code_point = number + 0x10000 if number < 0 else number
        if self._group.is_shown:
            if 0xD800 <= code_point < 0xDC00:
                self._high_surrogate = code_point
            elif 0xDC00 <= code_point < 0xE000 and self._high_surrogate:
                self._add_characters(chr(0x10000 + ((self._high_surrogate - 0xD800) << 10) + code_point - 0xDC00))
                self._high_surrogate = 0
            else:
                self._add_characters("\N{REPLACEMENT CHARACTER}" if 0xDC00 <= code_point < 0xE000 else chr(code_point))
        self._characters_to_skip = self._group.skip_count

    def _add_characters(self, characters: str) -> None:
        for character in characters:
            if character in "\\{}":
                self._parts.append(f"\\{character}")
            else:
                self._parts.append(character if character.isascii() else f"\\u{ord(character)}?")
