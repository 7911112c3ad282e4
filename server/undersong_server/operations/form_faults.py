"""Faults of a task, each at every field of the form that its rule concerns, as a person at the form reads them."""

import re
from collections.abc import Iterator, Sequence

from undersong_common.printable import page_words
from undersong_server.operations.form import FormSection, TaskField, hospital_words

PARTIES = "parties"  # the form's choice of hospitals, which sets federation.parties
_BEFORE_KEY = re.compile(r"(^|; )(?:[\w .\[\]]+: )+")  # the key at the begin of a fault, which its field shows already
_TABLE = re.compile(r"\bgenerators(?:\[(\d+)\]|\.(\d+))(?:\.([a-z_]+))?")
# a remedy for who writes the file
_MISSING = re.compile(r"\bwrite [\w.]+ = \.\.\.(?: under \[\[\w+\]\], table \d+ of that name)?")


def fault_places(sections: Sequence[FormSection], place: str, words: str) -> list[str]:
    """Returns the paths of the fields, or else of the section, that show a fault; [] if the form has none.

    A rule of one key stands at its field. A rule of a section or of the whole task stands at each field whose key its
    words name.

    Args:
        place: path of the key or section at fault, such as "privacy"; "" where the error names none.
    """
    fields = {field.path for form_section in sections for field in form_section.fields}
    form_paths = [*fields, *(form_section.path for form_section in sections)]
    nearest = max((path for path in form_paths if f"{place}.".startswith(f"{path}.")), key=len, default="")
    if nearest in fields:
        return [nearest]
    named_paths = list(dict.fromkeys(_find_named_fields(sections, nearest, words)))
    return named_paths or ([nearest] if nearest else [])


def _find_named_fields(sections: Sequence[FormSection], nearest: str, words: str) -> Iterator[str]:
    header_match = re.match(r"\[(\w+)\]", words)
    for form_section in sections:
        is_of_rule = form_section.path == nearest or (
            header_match is not None and header_match[1] == form_section.title
        )
        for field in form_section.fields:
            key = field.path.rpartition(".")[2]
            if _holds(words, f"{form_section.title}.{key}") or (is_of_rule and _holds(words, key)):
                yield field.path
        if form_section.kind and form_section.fields and _holds(words, f"generator {form_section.fields[0].text}"):
            yield form_section.path
    if _holds(words, "federation.parties") or (header_match is not None and header_match[1] == "federation"):
        yield PARTIES
    yield from (field.path for field in _of_same_value(sections, words))


def _of_same_value(sections: Sequence[FormSection], words: str) -> Iterator[TaskField]:
    """The fields of several tables, such as [[generators]], that have the same value of a key which the words name."""
    table = re.search(r"\[\[(\w+)\]\]", words)
    tables = [section for section in sections if table is not None and section.title == table[1]]
    fields = [field for section in tables for field in section.fields if _holds(words, field.path.rpartition(".")[2])]
    for field in fields:
        if sum(field.text == candidate.text for candidate in fields) > 1:
            yield field


def _holds(words: str, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w])", words) is not None


def form_words(sections: Sequence[FormSection], words: str) -> str:
    """Returns a fault's words for its fields: without the key that the field says, each generator by its name."""
    names = {section.path.partition(".")[2]: section.fields[0].text for section in sections if section.kind}

    def name_generator(match: re.Match[str]) -> str:
        generator_name = names.get(match[1] or match[2])
        if not generator_name:
            return match[0]
        return f"the {match[3].replace('_', ' ')} of {generator_name}" if match[3] else generator_name

    plain_words = _MISSING.sub("fill in this field", _BEFORE_KEY.sub(r"\1", words))
    plain_words = plain_words.replace(", without quotes", "")  # Only a task file needs quotes.
    return hospital_words(_TABLE.sub(name_generator, page_words(plain_words)))
