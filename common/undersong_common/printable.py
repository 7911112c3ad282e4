"""Makes strings safe to show: one line, nothing invisible, nothing that moves the cursor or changes the direction.

A string from another program passes through :func:`printable` before a person reads it. A name that everybody signs
is checked by :func:`name_fault` before it is stored. Functions that write numbers and times for people are here too.
"""

import hashlib
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

Value = TypeVar("Value", bound=Hashable)

LONGEST = 300  # default number of characters that are shown of a text from another program
MOST_MARKS = 2  # largest number of combining marks on one letter; more would cover the neighbouring lines

# Printable by Unicode's general categories, and yet shown as nothing: fillers, joiners and variation selectors.
_BLANK = frozenset(
    chr(point)
    for first, last in (
        (0x034F, 0x034F),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x2800, 0x2800),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFFA0, 0xFFA0),
        (0xE0100, 0xE01EF),
    )
    for point in range(first, last + 1)
)
_RIGHT_TO_LEFT = ("R", "AL", "AN")
_LEFT_TO_RIGHT_MARK = "\u200e"


def printable(text: str, longest: int = LONGEST) -> str:
    r"""Returns ``text`` on one line, cut to ``longest`` characters, with escapes for invisible characters.

    Control and format characters (ESC, newlines, bidirectional overrides, zero-width ones), unusual spaces, spaces
    after spaces, blank letters and heaps of combining marks are made visible. Letters of scripts that run from right to
    left are set between two left-to-right marks, so that they turn nothing beside them.

    >>> printable("harmless\x1b[2J\nepsilon 0.1")
    'harmless\\x1b[2J\\nepsilon 0.1'
    """
    if len(text) <= longest and text.isascii() and text.isprintable() and "  " not in text:
        return text  # This holds for nearly every line of a log. The loop below takes a hundred times as long.
    printed_pieces: list[str] = []
    printed_length = mark_count = 0
    has_right_to_left = False
    previous_character = ""
    for character in text:
        if unicodedata.category(character) in ("Mn", "Me"):
            mark_count += 1
        else:
            mark_count = 0
        visible_sign = _visible_character(character, previous_character, mark_count)
        printed_length += len(visible_sign)
        if printed_length > longest:
            printed_pieces.append("...")
            break
        has_right_to_left = has_right_to_left or (
            visible_sign == character and unicodedata.bidirectional(character) in _RIGHT_TO_LEFT
        )
        printed_pieces.append(visible_sign)
        previous_character = character
    printed_text = "".join(printed_pieces)
    if has_right_to_left:
        return f"{_LEFT_TO_RIGHT_MARK}{printed_text}{_LEFT_TO_RIGHT_MARK}"
    return printed_text


def fingerprinted(text: str, longest: int) -> str:
    """Returns ``text`` if it is printable and short; otherwise its beginning and a part of its SHA-256.

    Two texts that are signed in this form are thus told apart, however long they are.

    >>> fingerprinted("tiny at far.example", 40), fingerprinted("tiny" * 20, 40)
    ('tiny at far.example', 'tinytinytinytinyt... #35a50d8db3d301e3')
    """
    if printable(text, longest) == text and len(text) <= longest:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{printable(text, longest - len(digest) - 7)} #{digest}"


def printable_lines(text: str) -> str:
    """Returns a text of several lines, each line made :func:`printable` and not cut.

    It is for our own sentences that quote strings of a peer. Strings that may hold a newline must have passed through
    :func:`printable` before.
    """
    bodies = ((line, line.lstrip(" ")) for line in text.split("\n"))
    return "\n".join(" " * (len(line) - len(body)) + printable(body, len(line) * 10) for line, body in bodies)


def shell_word(text: str) -> str:
    """Returns ``text``, made printable, quoted as one word of a POSIX shell, for a command that a person copies.

    >>> print(shell_word("spring"), shell_word("it's $(date)"))
    'spring' 'it'\\''s $(date)'
    """
    return "'" + printable(text).replace("'", "'\\''") + "'"


def shell_path(path: object) -> str:
    """Returns a path as it is typed in a POSIX shell, quoted only if it must be.

    >>> print(shell_path("out/first"), shell_path("my runs/first"))
    out/first 'my runs/first'
    """
    path_text = str(path)
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", path_text):
        return path_text
    return shell_word(path_text)


def name_fault(name: object, longest: int) -> str:
    """Returns the reason why people cannot sign ``name`` (empty, too long, invisible parts); "" if they can.

    >>> name_fault("spring 2026", 80)
    ''
    >>> name_fault("spring\u202e", 80)
    'has a character that cannot be seen, or a space too many'
    """
    if not isinstance(name, str) or not name:
        return "is empty or no text"
    if len(name) > longest:
        return f"has {len(name)} characters, {longest} are allowed"
    if name != name.strip() or printable(name, longest).strip(_LEFT_TO_RIGHT_MARK) != name:
        return "has a character that cannot be seen, or a space too many"
    return ""


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Returns ``value`` as JSON in which invisible characters are written as JSON escapes."""
    json_words = json.dumps(value, indent=indent, ensure_ascii=False)
    if json_words.isascii() and "\x7f" not in json_words:
        return json_words  # The encoder escapes every control character of ASCII but DEL.
    return "".join(
        character if character in "\n " or not _is_hidden(character) else json.dumps(character)[1:-1]
        for character in json_words
    )


def _visible_character(character: str, before: str, mark_count: int) -> str:
    if _is_hidden(character) or mark_count > MOST_MARKS:
        return character.encode("unicode_escape").decode("ascii")
    if character == before == " ":
        return "\\x20"
    return character


def _is_hidden(character: str) -> bool:
    return not character.isprintable() or character in _BLANK


def is_blank(text: str) -> bool:
    r"""Returns True for a text of which nothing can be seen: white space, controls, zero-width and blank letters.

    >>> is_blank(" \u200b\x00\u2800"), is_blank("\u200b.")
    (True, False)
    """
    return all(character.isspace() or _is_hidden(character) for character in text)


def encodable(text: str) -> str:
    """Returns ``text`` with U+FFFD in place of lone surrogates, which JSON can hold and UTF-8 cannot.

    A tokenizer would refuse a record with such a character, and that refusal would reveal the record.

    >>> encodable("a\\ud800b") == "a\\N{REPLACEMENT CHARACTER}b"
    True
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_TIME_KEYS = ("at", "since", "last_seen")
_EPOCHS = (1e9, 1e11)  # seconds since the epoch of every date of ours; every duration of ours is shorter


def iso_time(seconds: float) -> str:
    """Returns seconds since the epoch as ISO 8601, in UTC.

    >>> iso_time(1767225600.25)
    '2026-01-01T00:00:00.250Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_iso_times(value: Any) -> Any:
    """Returns ``value``, plain JSON values, with every time in it as ISO 8601.

    A number is a time if its key is ``at``, ``since`` or ``last_seen``, ends with ``_at``, or ends with ``_s`` and the
    number is too large for a duration; the ending ``_s`` then becomes ``_at``.

    >>> with_iso_times({"received_s": 1767225600.0, "waited_s": 3.5, "at": None})
    {'received_at': '2026-01-01T00:00:00.000Z', 'waited_s': 3.5, 'at': None}
    """
    if isinstance(value, Mapping):
        return dict(_iso_item(str(key), item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [with_iso_times(item) for item in value]
    return value


def _iso_item(key: str, item: Any) -> tuple[str, Any]:
    is_time = key in _TIME_KEYS or key.endswith(("_at", "_s"))
    if is_time and isinstance(item, (int, float)) and not isinstance(item, bool) and _EPOCHS[0] <= item < _EPOCHS[1]:
        if key == "at_s":
            iso_name = "at"
        elif key.endswith("_s"):
            iso_name = f"{key.removesuffix('_s')}_at"
        else:
            iso_name = key
        return iso_name, iso_time(item)
    return key, with_iso_times(item)


# Options of commands in an error's words, as "(--name NAME)" or ": --sheet NAME", and headers of a task file's tables.
_OPTIONS = re.compile(r" \(--[^)]*\)|: --[a-z][^;]*")
_TABLE_HEADER = re.compile(r"\[\[(\w+)\]\]")


def page_words(words: str) -> str:
    """Returns an error's words for a page, where nobody types options or a file's table headers.

    An error names an option in parentheses or behind a colon, so that the words before it hold on a page, too.

    >>> page_words("type it (--fingerprint); two [[generators]] share a name; choose one: --sheet NAME")
    'type it; two generators share a name; choose one'
    """
    return _TABLE_HEADER.sub(r"\1", _OPTIONS.sub("", words))


def noun(count: float, one: str, many: str = "") -> str:
    """Returns the noun's form for a count: ``one`` for 1, else ``many``, or ``one`` with an s if that is "".

    >>> noun(1, "run"), noun(0, "run"), noun(2, "party", "parties")
    ('run', 'runs', 'parties')
    """
    if count == 1:
        return one
    return many or f"{one}s"


def counted(count: int, one: str, many: str = "") -> str:
    """Returns a count with its noun; ``many`` is the plural if it is not ``one`` with an s.

    >>> counted(1, "party", "parties"), counted(12, "record")
    ('1 party', '12 records')
    """
    return f"{count} {noun(count, one, many)}"


def joined(words: Sequence[str]) -> str:
    """Joins words by commas, and the last one by "and".

    >>> joined(["1", "30", "4"])
    '1, 30 and 4'
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def first_named(names: Sequence[str], most: int, further: str = "") -> str:
    """Returns the first ``most`` names of a list and the number of the others; ``further`` says where those stand.

    >>> first_named(["a", "b", "c"], 2), first_named(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    first_words = ", ".join(names[:most])
    if len(names) > most:
        return f"{first_words} and {len(names) - most} more{further}"
    return first_words


def repeated(values: Iterable[Value]) -> list[Value]:
    """Returns the values that stand more than once in ``values``, each once, in order of their first place.

    >>> repeated(["b", "a", "b", "c", "a"])
    ['b', 'a']
    """
    return [value for value, count in Counter(values).items() if count > 1]


def that_hold(*cases: tuple[object, str]) -> list[str]:
    """Returns the sentences whose condition is true; each case is (condition, sentence).

    >>> that_hold((False, "it rains"), (3, "it snows"))
    ['it snows']
    """
    return [sentence for is_true, sentence in cases if is_true]


def is_number(text: str) -> bool:
    """Returns True if a text from outside is a whole number of at most nine ASCII digits.

    >>> is_number("12"), is_number("-1"), is_number("\u00b2"), is_number("9" * 5000)
    (True, False, False, False)
    """
    return text.isascii() and text.isdigit() and len(text) <= 9


def number(value: float | None, nothing: str = "none", infinite: str = "no limit") -> str:
    """Returns a number as people write it, rounded to about four digits, with thin spaces between thousands.

    Args:
        nothing, infinite: words for None and NaN, and for infinity.

    >>> number(4.0), number(1e-5), number(None), number(12345.0), number(math.inf)
    ('4', '1e-5', 'none', '12\u202f345', 'no limit')
    """
    if value is None or math.isnan(value):
        return nothing
    if math.isinf(value):
        return infinite
    if value != 0 and abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    if abs(value) >= 10_000:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Returns a duration in its largest unit, or its two largest ones from a minute on.

    >>> duration(0.42), duration(42.4), duration(75), duration(7300), duration(200000)
    ('0.4 s', '42 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        if seconds < 1:
            return f"{seconds:.1g} s"
        return f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60} s"
    if whole_seconds < 86400:
        return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60} min"
    return f"{whole_seconds // 86400} d {whole_seconds % 86400 // 3600} h"


def finite(value: Any, instead: Callable[[float], str | None] = lambda _value: None) -> Any:
    """Returns ``value`` as JSON can hold it: tuples as lists, infinity and NaN as None or as ``instead`` returns."""
    if isinstance(value, Mapping):
        return {key: finite(member, instead) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [finite(member, instead) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return instead(value)
    return value
