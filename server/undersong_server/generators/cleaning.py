"""Cleaning: from a model's raw answer to the text that was asked for, "" if there is none; duplicates of texts.

Rules take away what surrounds a text (prompt echo, "Sure, here is ...", quotes, markup, numbering, chat markers) and
never rewrite what is inside it. Cleaning twice gives what cleaning once gives. What is no text at all (a refusal,
several texts, an analysis) is told by ``reading``.
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from undersong_common.embedding import Embed

DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near duplicate"
REMEMBERED = 1 << 15  # texts whose reading or key is kept: about as many as the files of one task's generators hold

# A rule that needs a closing mark looks no further than this many characters, so that no answer takes long.
_REACH = 160
# A text that is wrapped more deeply comes from a model that repeats itself.
_ROUNDS = 32

_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff\ud800-\udfff]"
)
_THINKING = re.compile(r"<(think|thinking|reasoning|analysis)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_CLOSED_THINKING = re.compile(r"\A.*</(?:think|thinking|reasoning|analysis)>", re.DOTALL | re.IGNORECASE)
_TAGGED = re.compile(r"<(text|answer|output)>(.*?)(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_CHANNEL = re.compile(r"<\|channel\|>final<\|message\|>")
_TURN_HEAD = re.compile(
    r"<\|im_start\|>\s*(?:assistant|system|user)?|<\|start_header_id\|>\s*\w+\s*<\|end_header_id\|>"
    r"|<start_of_turn>\s*(?:model|user)?|<\|(?:assistant|begin_of_text|start|message|channel)\|>|\[/?INST\]|<</?SYS>>|<s>|<bos>"
)
_TURN_END = re.compile(
    r"<\|(?:im_end|eot_id|eom_id|end|endoftext|end_of_text|return|user)\|>|<end_of_turn>|</s>|<eos>|<pad>"
    r"|\n[ \t]*(?:(?:User|Human|Assistant|AI)[ \t]*:|###[ \t]*(?:Instruction|Input|Human|User|Response)\b)"
)
_ROLE = re.compile(r"\A(?:###[ \t]*)?(?:assistant|ai|response)[ \t]*:[ \t]*\n?", re.IGNORECASE)
# Lower case only: <A>, <B>, <I> are a model's stand-ins for names
_MARKUP = re.compile(r"</?(?:br|p|div|span|b|i|em|strong|u|a|ul|ol|li|h[1-6]|body|html)\b[^<>]{0,200}/?>")
_BREAK = re.compile(r"<br[ \t]*/?>|</(?:p|div|li|h[1-6])>", re.IGNORECASE)
_FENCE = re.compile(r"\A```[\w-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|__)(?=[^\s*_])([^\n*]{1,400}?)(?<=[^\s*_])\1(?![\w*])")
_HEADING = re.compile(r"^#{1,6}[ \t]+", re.MULTILINE)
_RULE = re.compile(r"\A(?:-{3,}|\*{3,}|={3,}|_{3,})[ \t]*\n|\n[ \t]*(?:-{3,}|\*{3,}|={3,}|_{3,})\Z")
_ITEM = re.compile(r"^[ \t]*(?:\(?\d{1,3}[.)]|[-*•–])[ \t]+", re.MULTILINE)
_SECOND = re.compile(r"(?<!\S)\(?2[.)]\s")

_THING = (
    r"(?:text|note|example|sample|version|rewrite|rewritten|rewording|paraphrased?|variation|review|message|question|"
    r"query|sentence|paragraph|entry|record|report|answer|response|passage|summary|description|post|comment|draft)s?"
)
# What only a writer on demand calls its work
_MADE = (
    r"(?:example|sample|version|rewrite|rewritten|rewording|paraphrased?|variation|text|draft|requested|synthetic)s?"
)
_WILLING = r"(?:sure(?: thing)?|certainly|of course|okay|ok|absolutely|no problem|gladly|understood)"
_NOT_MINE = rf"(?![^\n:]{{0,{_REACH}}}\b(?:i|my|mine|me|we|our|us)\b)"
_HERE = r"(?:here(?:'s|’s| is| are)|below (?:is|are)|the following is)\b"
# "Sure, here is a note:", "Certainly! Below is ... text: ", "Sure.\n". Before a colon stands real content, too: "Here
# is my question:" and "This is a question about my card: why was it declined?" stay.
_PREAMBLE = re.compile(
    rf"\A(?:{_WILLING}[,!.:]?[ \t]*\n+"
    rf"|{_WILLING}[,!.:]*\s+{_HERE}{_NOT_MINE}(?=[^\n:]{{0,{_REACH}}}\b{_THING}\b)[^\n:]{{0,{_REACH}}}:"
    rf"[ \t]*(?:\n+|(?=\S))"
    rf"|{_HERE}{_NOT_MINE}(?=[^\n:]{{0,{_REACH}}}\b{_MADE}\b)[^\n:]{{0,{_REACH}}}:[ \t]*(?:\n+|(?=\S))"
    rf"|(?:{_HERE}|this is\b){_NOT_MINE}(?=[^\n:]{{0,{_REACH}}}\b{_THING}\b)[^\n:]{{0,{_REACH}}}:[ \t]*\n+)",
    re.IGNORECASE,
)
_FIELD = re.compile(
    r"\A(?:(?:new|final|rewritten|revised|generated|synthetic|paraphrased|completed|output|sample|example)[ \t]+)?"
    r"(?:text|output|answer|response|paraphrase|rewrite|version|message|(?:customer|user|client)(?:'s)?[ \t]+"
    r"(?:message|question|query)|(?:triage|clinical|nursing|nurse's|synthetic|new|generated|revised|rewritten)[ \t]+"
    r"(?:note|review|question|query|message))"
    r"[ \t]*(?:\d{1,3})?[ \t]*:[ \t]*\n*(?=\S)",
    re.IGNORECASE,
)
# After an analysis that was not asked for, the text that was
_AFTER_ANALYSIS = re.compile(
    r"\n[ \t]*(?:\*\*|#+[ \t]*)?(?:(?:the|my)[ \t]+)?(?:new|final|revised|rewritten|generated|resulting)[ \t]+"
    rf"(?:\w+[ \t]+){{0,2}}{_THING}(?:\*\*)?[ \t]*:[ \t]*(?:\*\*)?[ \t]*\n*(?=\S)",
    re.IGNORECASE,
)
_LABEL_LINE = re.compile(
    r"\A(?:label|category|class)[ \t]*:[ \t]*[^\n]{1,80}\n+|\n+(?:label|category|class)[ \t]*:[^\n]{0,80}\Z",
    re.IGNORECASE,
)
_FAREWELL = re.compile(
    r"\n\s*(?:\(?note:|let me know\b|i hope (?:this|that)\b|hope this helps|feel free to\b|would you like me to\b|"
    r"please let me know if you\b|this (?:text|version|rewrite|paraphrase|example)\b|\(?word count\b|\(\d+ words\)|"
    r"explanation:|please note that\b|is there anything else\b|"
    r"i(?:'ve|’ve| have) (?:written|kept|tried|included|made)\b)[^\n]*\Z",
    re.IGNORECASE,
)
_ASCII_WORD = re.compile(r"[a-z0-9]+")
_QUOTES = {'"': '"', "“": "”", "«": "»", "‘": "’", "'": "'", "`": "`", "„": "“"}


def clean(text: str, *, prompt: str = "") -> str:
    """The text inside a raw answer.

    Args:
        text: the answer as the model wrote it.
        prompt: what the model was shown; an echo of it, or of its last line, is removed.

    Returns:
        The text without what surrounds it; "" if nothing with a letter or digit is left.

    >>> clean('Sure, here is a new text:\\n\\n"1. The card was **declined**."')
    'The card was declined.'
    """
    text = _without_echo(_spaced(_CONTROL.sub("", text)), prompt)
    for _ in range(_ROUNDS):
        shorter = _pass(text)
        if shorter == text:
            return "" if is_empty(text) else text
        text = shorter
    return ""


def is_empty(text: str) -> bool:
    """Returns True if the text has no letter and no digit."""
    return not any(character.isalnum() for character in text)


@lru_cache(maxsize=REMEMBERED)
def duplicate_key(text: str) -> str:
    """Returns the same key for texts that differ in case, punctuation, spacing or Unicode form only.

    >>> duplicate_key("My card -- declined!") == duplicate_key("my  CARD declined")
    True
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    if folded.isascii():
        return " ".join(_ASCII_WORD.findall(folded))
    return " ".join("".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in folded).split())


def _pass(text: str) -> str:
    """One round of all rules. No rule lengthens the text, so that repeated rounds end."""
    text = _spaced(_CONTROL.sub("", html.unescape(text)))
    text = _message(text)
    text = _MARKUP.sub("", _BREAK.sub("\n", text)).strip()
    if fenced := _FENCE.match(text):
        text = fenced[1]
    if headed := list(_AFTER_ANALYSIS.finditer(text)):
        text = text[headed[-1].end() :]
    for surrounding in (_ROLE, _PREAMBLE, _FIELD, _LABEL_LINE, _FAREWELL, _RULE):
        rest = surrounding.sub("", text, count=1).strip()
        text = rest if not is_empty(rest) else text
    text = _HEADING.sub("", _EMPHASIS.sub(r"\2", text))
    items = _ITEM.findall(text)
    if len(items) == 1 and (first := _ITEM.match(text)) and not _SECOND.search(text):
        text = text[first.end() :]  # a list of several items may well be the text itself, e.g. a plan of treatment
    return _spaced(_unquoted(text.strip()))


def _message(text: str) -> str:
    """Returns the words of the assistant's turn, without its thinking and the turns that it made up."""
    if (final := list(_CHANNEL.finditer(text))) and not is_empty(text[final[-1].end() :]):
        text = text[final[-1].end() :]
    text = _CLOSED_THINKING.sub("", _THINKING.sub("", text))
    if tagged := tagged_texts(text):
        text = tagged[-1]
    text = _TURN_HEAD.sub("", text).strip()
    end = _TURN_END.search(text)
    while end and is_empty(text[: end.start()]):
        text = text[end.end() :].strip()
        end = _TURN_END.search(text)
    return text[: end.start()].strip() if end else text


def tagged_texts(text: str) -> list[str]:
    """Returns the texts between ``<text>`` and ``</text>`` in an answer, each different text once.

    >>> tagged_texts("I write between <text> and </text>: <text>My card.</text>")
    ['My card.']
    """
    found = [match[2] for match in _TAGGED.finditer(text) if not is_empty(match[2])]
    longer = [each for each in found if len(each.split()) > 1]
    return list({duplicate_key(each): each for each in longer or found}.values())


def _without_echo(text: str, prompt: str) -> str:
    echo = _spaced(_CONTROL.sub("", prompt))
    if not echo:
        return text
    position = text.find(echo)
    if position >= 0:
        rest = text[position + len(echo) :].strip()
        return rest if not is_empty(rest) else ""
    last = echo.rsplit("\n", 1)[-1]
    if len(last.split()) >= 4 and text.startswith(last):
        return text[len(last) :].strip()
    return text


def _unquoted(text: str) -> str:
    closing = _QUOTES.get(text[:1])
    if closing is not None and len(text) > 1 and text.endswith(closing):
        inside = text[1:-1]
        # 'don't' keeps its apostrophe; "a" and "b" keeps its quotes
        bare = re.sub(r"(?<=\w)['’](?=\w)", "", inside)
        if text[0] not in bare and closing not in bare:
            return inside.strip()
    for lone in ('"', "“", "”"):
        if text.count(lone) == 1 and not set(text) & ({'"', "“", "”"} - {lone}):
            text = text.strip(lone).strip()
    return text


def _spaced(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"[^\S\n]+", " ", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" ?\n ?", "\n", text)).strip()


# Duplicates within a run


class Screening:
    """Finds texts that a run has already: exact duplicates, and near duplicates by embeddings of one label."""

    def __init__(self, embed: Embed | None = None, *, bound: float = 1.0) -> None:
        """Takes the cosine above which two texts of one label are near duplicates. Without ``embed`` no texts are."""
        self._embed = embed if bound < 1.0 else None
        self._bound = bound
        self._keys: set[str] = set()
        self._texts: dict[str, list[str]] = {}

    def add(self, texts: Sequence[str], labels: Sequence[str]) -> None:
        """Notes texts that were kept before, without a judgement."""
        for text, label in zip(texts, labels, strict=True):
            self._keys.add(duplicate_key(text))
            self._texts.setdefault(label, []).append(text)

    def faults(
        self, texts: Sequence[str], labels: Sequence[str], *, exact: Sequence[bool], near: Sequence[bool]
    ) -> list[str]:
        """Judges each text, in order: "" for a new one, which is noted, else DUPLICATE or NEAR_DUPLICATE.

        Args:
            exact, near: True for each text that is compared with the texts, and with the embeddings, before it.
        """
        found = []
        for text, is_exact in zip(texts, exact, strict=True):
            key = duplicate_key(text)
            found.append(DUPLICATE if is_exact and key in self._keys else "")
            self._keys.add(key)
        if self._embed is not None and any(near):
            self._find_near(texts, labels, near, found)
        kept = [index for index, fault in enumerate(found) if not fault]
        self.add([texts[index] for index in kept], [labels[index] for index in kept])
        return found

    def _find_near(self, texts: Sequence[str], labels: Sequence[str], near: Sequence[bool], found: list[str]) -> None:
        assert self._embed is not None
        open_ = [index for index, fault in enumerate(found) if not fault]
        for label in dict.fromkeys(labels[index] for index in open_):
            own = [index for index in open_ if labels[index] == label]
            vectors = self._embed([*self._texts.get(label, ()), *(texts[index] for index in own)])
            known = len(vectors) - len(own)
            closeness = vectors[known:] @ vectors.T
            kept = np.arange(len(vectors)) < known
            for row, index in enumerate(own):
                if near[index] and bool((closeness[row][kept] > self._bound).any()):
                    found[index] = NEAR_DUPLICATE
                else:
                    kept[known + row] = True
