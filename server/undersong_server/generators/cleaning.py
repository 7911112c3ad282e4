"""Cleaning: from a model's raw answer to the text that was asked for, "" if there is none; duplicates of texts.

A model's thinking is removed first. Of what stands between ``<text>`` and ``</text>`` only white space, quotes around
the whole and a chat's end tokens are removed. Without tags, rules remove what surrounds a text (prompt echo, "Sure,
here is ...", quotes, markup, a number, chat markers). No rule rewrites what is inside a text, and a cleaned text
without tags stays as it is when it is cleaned again. The module ``reading`` recognises answers that are no text at all
(a refusal, several texts, an analysis).
"""

import ast
import html
import json
import re
import tomllib
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from undersong_common.models.embedding import Embed
from undersong_server.prompts.scripts import COLONS, EMOJI, ITEM, JOINING, UNSPACED

DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near duplicate"
REMEMBERED = 1 << 15  # texts whose reading or key is kept: about as many as the files of one task's generators hold

# A text that is wrapped more deeply comes from a model that repeats itself.
_ROUNDS = 32

# Characters that no reader sees. U+200C and U+200D stay in words that they join and in emoji, U+200B where it divides
# the words of a script without spaces.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
    r"|(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0001-\U000e007f]+"  # tags that follow no flag
    rf"|\u200b(?:(?=\s|\Z)|(?<=\s.)|(?<![{UNSPACED}].)(?![{UNSPACED}]))"
    rf"|[\u200c\u200d](?!(?<=[{JOINING}].)[\w{JOINING}]|(?<=[\w{JOINING}].)[{JOINING}]|(?<=[{EMOJI}].)[{EMOJI}])",
    re.DOTALL,
)
# A terminal's control sequence (ECMA-48) goes as a whole: "[2J" without its escape character is no part of a text.
_CONTROL_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?|\x9b[0-9;]+[A-Za-z]|\x1b\][^\x07\x1b\n]{0,300}(?:\x07|\x1b\\)|\x1b[()*+][0-9A-Z]"
)
_LINE_BREAKS = str.maketrans(dict.fromkeys("\u2028\u2029\x85\x0c", "\n"))

TAG = re.compile(r"[<＜]\s*/?\s*text\b[^<>＜＞]{0,80}[>＞]", re.IGNORECASE)
_MARKED_TAG = re.compile(rf"(\*{{1,2}}|`)({TAG.pattern})\1", re.IGNORECASE)  # **<text>**
_CLOSED = re.compile(r"[<＜]\s*/\s*(?:text|answer|output|response)\s*[>＞]", re.IGNORECASE)
_OPENED = re.compile(r"[<＜]\s*(text|answer|output|response)\b[^<>＜＞]{0,80}[>＞]", re.IGNORECASE)
_TAGGED = re.compile(
    rf"{_OPENED.pattern}((?:(?!{_OPENED.pattern.replace('(', '(?:', 1)}).)*?)(?:[<＜]\s*/\s*\1\s*[>＞]|\Z)",
    re.DOTALL | re.IGNORECASE,
)
# Marks around a model's thinking: a vendor's tag in any brackets, or the words that the vendor's models write instead
_LEFT, _RIGHT = r"[<\[{◁＜〈⟨«【][|｜]?", r"[|｜]?[>\]}▷＞〉⟩»】]"
_THOUGHT = (
    r"(?:[\w:-]{0,20}(?:think|thought|reason|rational|reflect|analy[sz]|deliberat|(?:inner )?monologue|scratch"
    r"|思考|思维|思維)\w{0,12})"
)
THINKING_MARKS = (
    (
        rf"{_LEFT}(?!end_){_THOUGHT}(?<!_end){_RIGHT}|\b(?-i:START_THINKING)\b",
        rf"{_LEFT}(?:/\s*{_THOUGHT}|end_{_THOUGHT}|{_THOUGHT}(?<=_end)){_RIGHT}|\b(?-i:END_THINKING)\b",
    ),
    (r"<unused94>", r"<unused95>"),
    (r"<\|channel\|>\s*(?:analysis|commentary)\b", r"<\|channel\|>\s*final\b[^<]{0,40}<\|message\|>"),
    (r"<\|channel>\s*\w+", r"<channel\|>"),
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    (r"\A\s*(?-i:analysis)(?=[^\sa-z.:,;)\]>}])", r"(?-i:assistantfinal)"),
    (r"\A\s*Here is my thought process:", r"Here is my response:"),
)
# Marks of a chat: a special token, and the role that stands right behind one
_MARK = (
    r"(?:<[|｜][\w▁ ./-]{1,40}[|｜]>|</?s>|<(?:bos|eos|pad|unk|end_of_turn|start_of_turn|end_of_utterance)>"
    r"|\[/?INST\]|<</?SYS>>)"
)
_HEADS = re.compile(rf"\A(?:\s*{_MARK}(?:[ \t]*(?:assistant|system|user|model)(?=\s*(?:\n|\Z)|<))?)+")
_TURN_END = re.compile(
    rf"{_MARK}|\n[ \t]*(?:(?:User|Human|Assistant|AI)[ \t]*:|###[ \t]*(?:Instruction|Input|Human|User|Response)\b)"
)
_MARKS_AROUND = re.compile(rf"\A(?:\s*{_MARK})+|(?:{_MARK}\s*)+\Z")
# Lower case only: <A>, <B>, <I> are a model's stand-ins for names
_MARKUP = re.compile(r"</?(?:br|p|div|span|b|i|em|strong|u|a|ul|ol|li|h[1-6])(?:\s+[\w-]+\s*=[^<>]{0,200})?\s*/?>")
_BREAK = re.compile(r"<br[ \t]*/?>|</(?:p|div|li|h[1-6])>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-f]{1,6}|\w{1,31});", re.IGNORECASE)  # a web address may hold &copy=1
_FENCE = re.compile(r"(?:```|~~~)([\w+-]*)[^\n`~]*\n(.*?)(?:\n?(?:```|~~~)|\Z)", re.DOTALL)
_CODE = re.compile(r"(?:ya?ml|toml|[ct]sv|ini|py(?:thon)?|sql|js|javascript|html|css|bash|sh)", re.IGNORECASE)
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|__)(?=[^\s*_])([^\n*]{1,400}?)(?<=[^\s*_])\1(?![\w*])")
_HEADING = re.compile(r"^#{1,6}[ \t]+", re.MULTILINE)
# The mark of one item: a list of several may well be the text itself, as a plan of treatment is
_ONLY_ITEM = re.compile(rf"\A(?!.*(?:\n{ITEM}|(?<!\S)\(?2[.)]\s)){ITEM}", re.DOTALL)
# JSON, also as a string of JSON, a table, a page, a call, a key of YAML or TOML with a quoted value, a head of CSV
_DATA = re.compile(
    r"\s*(?:(?:data:\s*|json\s*)?[\[{]\s*[\"'\[{]|\"[\[{]\s*\\?[\"']|\||<!doctype html|<html\b|<\?xml\b"
    r"|[A-Za-z_][\w.]*\(\s*(?:\w+\s*=|[\"'{])"
    r"|(?-i:[\"']?(?:text|note|answer|content|output|response|message|label)[\"']?\s*"
    r"(?:[:=]\s*[\"'|>]|[,;\t]\s*\w+\n)))",
    re.IGNORECASE,
)
_ELEMENT = re.compile(r"\s*(?:<\?xml[^<>]*\?>\s*)?<((?!\d)[\w:.-]+)(?:[\s=][^<>]*)?>(.*)</\1\s*>\s*\Z", re.DOTALL)
_LONG_WORD = 12  # characters, from which on what stands without a space is a sentence of Chinese or Thai
_FAULTS = frozenset({"error", "errors", "detail"})  # keys of a server's own words

_ASCII_WORD = re.compile(r"[a-z0-9]+")
_QUOTES = {
    **{'"': '"', "“": "”", "«": "»", "»": "«", "‹": "›", "‘": "’", "'": "'", "`": "`", "„": "“”", "‚": "‘’"},
    **{"「": "」", "『": "』", "《": "》", "〝": "〞", "”": "”", "＂": "＂"},
}


class CleanAnswer(NamedTuple):
    """An answer without thinking and without an echo of its prompt.

    Attributes:
        whole: the answer, with what surrounds its text.
        tagged: the texts between ``<text>`` and ``</text>``.
        text: the last of these, or the text of an answer without tags; "" if nothing with a letter or digit is left.
    """

    whole: str
    tagged: list[str]
    text: str


def clean(answer: str, *, prompt: str = "") -> CleanAnswer:
    """Finds the text inside a raw answer.

    Args:
        answer: as the model wrote it.
        prompt: what the model was shown; an echo of it, or of its last line, is removed.

    >>> clean('Sure, here is a new text:\\n\\n"1. The card was **declined**."').text
    'The card was declined.'
    >>> clean("<think>Short.</think><text>Note: **penicillin** allergy.</text>").text
    'Note: **penicillin** allergy.'
    """
    full_answer = _MARKED_TAG.sub(r"\2", without_thinking(without_echo(readable(answer), prompt)))
    marked_texts = tagged_texts(full_answer)
    return CleanAnswer(full_answer, marked_texts, marked_texts[-1] if marked_texts else untagged_text(full_answer))


@cache
def phrases(kind: str) -> re.Pattern[str]:
    """Returns a pattern of the phrases of a kind in ``meta.toml``, with which models speak of their task."""
    phrase_table = _phrase_table()
    joined_phrases = "|".join(phrase_table[kind])
    for phrase_name, phrase_words in {**phrase_table["words"], "colons": COLONS}.items():
        joined_phrases = joined_phrases.replace(f"{{{phrase_name}}}", phrase_words)
    return re.compile(joined_phrases, re.IGNORECASE)


def title_words(name: str) -> tuple[str, ...]:
    """Returns the list ``name`` of ``[titles]`` in ``meta.toml``: words of headings that only name the kind of text."""
    return tuple(_phrase_table()["titles"][name])


@cache
def _phrase_table() -> dict[str, Any]:
    return tomllib.loads(resources.files("undersong_server.generators").joinpath("meta.toml").read_text("utf-8"))


def is_empty(text: str) -> bool:
    """Returns True if the text has no letter and no digit."""
    return not any(character.isalnum() for character in text)


@lru_cache(maxsize=REMEMBERED)
def duplicate_key(text: str) -> str:
    """Returns the same key for texts that differ in case, punctuation, spacing or Unicode form only.

    >>> duplicate_key("My card -- declined!") == duplicate_key("my  CARD declined")
    True
    """
    folded_text = unicodedata.normalize("NFKC", text).casefold()
    if folded_text.isascii():
        return " ".join(_ASCII_WORD.findall(folded_text))
    return " ".join(
        "".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in folded_text).split()
    )


def readable(text: str) -> str:
    """Returns the text without characters that nobody sees, with plain spaces and line breaks."""
    text = _CONTROL_SEQUENCE.sub("", text)
    text = _INVISIBLE.sub("", text.translate(_LINE_BREAKS).replace("\r\n", "\n").replace("\r", "\n"))
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" ?\n ?", "\n", re.sub(r"[^\S\n]+", " ", text))).strip()


def without_thinking(text: str, marks: Sequence[tuple[str, str]] = THINKING_MARKS) -> str:
    """Returns what follows a model's thinking; "" if it has not come to the end of that.

    >>> without_thinking("[THINK]Maybe <text>a</text>?[/THINK]<text>b</text>"), without_thinking("<thought>Short")
    ('<text>b</text>', '')
    """
    for opening_mark, closing_mark in marks:
        thinking_pattern = _thinking_pattern(opening_mark, closing_mark)
        if any(match["endless"] is not None for match in thinking_pattern.finditer(text)):
            return ""
        text = thinking_pattern.sub(lambda match: match["tagged"] or "", text)
        text = re.split(closing_mark, text, flags=re.IGNORECASE)[-1]  # a template may have opened it in the prompt
    return text


@cache
def _thinking_pattern(opening: str, closing: str) -> re.Pattern[str]:
    """Returns a pattern that finds thinking, and tagged texts before it, in which a mark is part of the text."""
    tagged_pattern = r"<text\b[^<>]{0,80}>(?:(?!<text\b).)*?</text"
    return re.compile(
        rf"(?P<tagged>{tagged_pattern})|(?:{opening})(?:.*?(?:{closing})|(?P<endless>.*\Z))", re.DOTALL | re.IGNORECASE
    )


def tagged_texts(text: str) -> list[str]:
    """Returns the texts between ``<text>`` and ``</text>`` in an answer, each different text once.

    >>> tagged_texts("I write between <text> and </text>: <text>My card.</text>")
    ['My card.']
    """
    texts = [match[2] for match in _TAGGED.finditer(text) if not is_empty(match[2])]
    longer_texts = [
        tagged_text for tagged_text in texts if len(tagged_text.split()) > 1 or len(tagged_text) > _LONG_WORD
    ]
    # A single word between tags within a sentence is no text: "between <text> and </text>".
    if not longer_texts and is_empty(_TAGGED.sub("", text)):
        meant_texts = texts
    else:
        meant_texts = longer_texts
    text_by_key = {duplicate_key(tagged): _unwrap_text(tagged) for tagged in meant_texts}
    return [tagged_text for tagged_text in text_by_key.values() if not is_empty(tagged_text)]


def tags_end(text: str) -> int:
    """Returns 1 if the last tag around a text closes it, -1 if it opens a text that nothing closes, 0 without tags."""
    last_opening, last_closing = (
        max((tag.start() for tag in tags.finditer(text)), default=-1) for tags in (_OPENED, _CLOSED)
    )
    return (last_closing > last_opening) - (last_opening > last_closing)


def closes_more_tags(text: str) -> bool:
    """Returns True if more tags close a text than open one."""
    return len(_CLOSED.findall(text)) > len(_OPENED.findall(text))


def untagged_text(text: str) -> str:
    """Returns the text in an answer without tags, which may have other things around it."""
    text = _apply_until_stable(text, _apply_rules)
    if is_empty(text):
        return ""
    return text


def _apply_until_stable(text: str, shorten: Callable[[str], str]) -> str:
    """Applies ``shorten`` until it changes the text no more; returns "" if it still does after ``_ROUNDS`` rounds."""
    for _ in range(_ROUNDS):
        longer_text = text
        text = shorten(text)
        if text == longer_text:
            return text
    return ""


def _unwrap_text(text: str) -> str:
    """Removes what wraps a text between tags: white space, quotes around the whole, a chat's end tokens."""
    return _apply_until_stable(text, lambda longer: _unquote_text(_MARKS_AROUND.sub("", longer).strip()))


def _apply_rules(text: str) -> str:
    """Applies each rule for untagged text once. No rule lengthens the text, so that repeated rounds end."""
    text = readable(_ENTITY.sub(lambda entity: html.unescape(entity[0]), text))
    text = _TURN_END.split(_HEADS.sub("", text).strip(), maxsplit=1)[0]
    text = _MARKUP.sub("", _BREAK.sub("\n", text)).strip()
    fenced_blocks = _FENCE.findall(text)
    if len(fenced_blocks) == 1 and not _CODE.fullmatch(fenced_blocks[0][0]):
        text = fenced_blocks[0][1]
    surrounding_text = phrases("surroundings").sub("", text).strip()
    text = text if is_empty(surrounding_text) else surrounding_text
    text = _ONLY_ITEM.sub("", _HEADING.sub("", _EMPHASIS.sub(r"\2", text)))
    return readable(_unquote_text(text.strip()))


def unpacked(text: str, *, tagged: bool = False) -> str:
    """Returns the one string of a text that is data (JSON, a Python literal, XML); "" if it has none, or several.

    Between tags a text counts as data only if all of it is: one that goes on in prose is returned as it is.

    >>> unpacked('{"note": {"text": "My card."}}'), unpacked("{'a': 'b', 'c': 'd'}")
    ('My card.', '')
    """
    for _ in range(_ROUNDS):
        fence_match = _FENCE.fullmatch(text.strip())
        fence_content = fence_match[2].strip() if fence_match else text
        element = _ELEMENT.match(fence_content)
        if element and element[1].casefold() != "html":
            inner_strings = [html.unescape(part) for part in re.split(r"<[^<>]*>", element[2]) if not is_empty(part)]
        elif _DATA.match(fence_content):
            if tagged and not is_empty(_after_data(fence_content)):
                return text
            inner_strings = data_strings(fence_content)
        else:
            if fence_match and _CODE.fullmatch(fence_match[1]):
                return ""
            return fence_content
        if len(inner_strings) != 1:
            return ""
        text = _unwrap_text(readable(inner_strings[0]))
    return ""


def _after_data(text: str) -> str:
    """Returns the prose behind JSON that a text begins with; "" if it goes on with data, or begins with none."""
    with suppress(ValueError, RecursionError):
        json_value, json_end = json.JSONDecoder(strict=False).raw_decode(text.lstrip())
        text_after = text.lstrip()[json_end:].lstrip(" \n,;")
        if text_after[:1] in ("{", "[", "`", "<") or isinstance(json_value, str):
            return ""
        return text_after
    return ""


def data_strings(text: str) -> list[str]:
    """Returns the strings in JSON or a Python literal that have a letter or digit; none of a server's error message."""
    for parse_data in (json.JSONDecoder(strict=False).decode, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of backslashes in strings
            return list(_string_values(parse_data(text)))
    return []


def _string_values(value: Any) -> Iterator[str]:
    if isinstance(value, str) and not is_empty(value):
        yield value
    elif isinstance(value, dict | list | tuple) and not _FAULTS.intersection(map(str, value)):
        for inner_value in value.values() if isinstance(value, dict) else value:
            yield from _string_values(inner_value)


def without_echo(text: str, prompt: str) -> str:
    """Returns the text without the prompt, or its last line, that it repeats."""
    echoed_prompt = readable(prompt)
    last_line = echoed_prompt.rsplit("\n", 1)[-1]
    if echoed_prompt and echoed_prompt in text:
        return text.partition(echoed_prompt)[2].strip()
    if len(last_line.split()) >= 4:
        return text.removeprefix(last_line).strip()
    return text


def _unquote_text(text: str) -> str:
    closing_quote = _QUOTES.get(text[:1], "")
    if len(text) < 2 or text[-1] not in closing_quote:
        return text
    # 'don't' keeps its apostrophe; "a" and "b" keeps its quotes
    bare_text = re.sub(r"(?<=\w)['’](?=\w)", "", text[1:-1])
    if {text[0], *closing_quote} & set(bare_text):
        return text
    return text[1:-1].strip()


# The names below find duplicates within a run.


class Screening:
    """Finds texts that a run has already: exact duplicates, and near duplicates by embeddings of one label."""

    def __init__(self, embed: Embed | None = None, *, bound: float = 1.0) -> None:
        """Two texts of a label with a cosine above ``bound`` are near duplicates; without ``embed`` no texts are."""
        self._embed = embed if bound < 1.0 else None
        self._bound = bound
        self._keys: set[str] = set()
        self._texts: dict[str, list[str]] = {}

    def add(self, texts: Sequence[str], labels: Sequence[str]) -> None:
        """Notes texts that were kept before, with which later texts are compared."""
        for text, label in zip(texts, labels, strict=True):
            self._keys.add(duplicate_key(text))
            self._texts.setdefault(label, []).append(text)

    def faults(
        self, texts: Sequence[str], labels: Sequence[str], *, exact: Sequence[bool], near: Sequence[bool]
    ) -> list[str]:
        """Judges each text, in order: "" for a new one, which is noted, else DUPLICATE or NEAR_DUPLICATE.

        Args:
            exact: True for each text that is compared with the texts before it.
            near: True for each text whose embedding is compared with those before it.
        """
        text_faults = []
        for text, is_exact in zip(texts, exact, strict=True):
            text_key = duplicate_key(text)
            text_faults.append(DUPLICATE if is_exact and text_key in self._keys else "")
            self._keys.add(text_key)
        if self._embed is not None and any(near):
            self._find_near(texts, labels, near, text_faults)
        kept_rows = [index for index, fault in enumerate(text_faults) if not fault]
        self.add([texts[index] for index in kept_rows], [labels[index] for index in kept_rows])
        return text_faults

    def _find_near(
        self, texts: Sequence[str], labels: Sequence[str], near: Sequence[bool], text_faults: list[str]
    ) -> None:
        assert self._embed is not None
        open_rows = [index for index, fault in enumerate(text_faults) if not fault]
        for label in dict.fromkeys(labels[index] for index in open_rows):
            label_rows = [index for index in open_rows if labels[index] == label]
            vectors = self._embed([*self._texts.get(label, ()), *(texts[index] for index in label_rows)])
            known_count = len(vectors) - len(label_rows)
            similarities = vectors[known_count:] @ vectors.T
            is_kept = np.arange(len(vectors)) < known_count
            for row, index in enumerate(label_rows):
                if near[index] and bool((similarities[row][is_kept] > self._bound).any()):
                    text_faults[index] = NEAR_DUPLICATE
                else:
                    is_kept[known_count + row] = True
