"""Reads answers: an answer is the text that was ordered, a list of names, or at fault in a stated way.

Refusals are recognised in the languages of ``refusals.toml``, by their first words. These say that the writer cannot or
will not do what only a model is asked for: help with this request, write such a text. A customer who "can't complete a
transfer" says the former and not the latter. Texts in another language than the task's are recognised, too.
"""

import json
import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from undersong_common.errors import GenerationError
from undersong_server.generators.cleaning import REMEMBERED, clean, duplicate_key, is_empty, tagged_texts
from undersong_server.generators.interface import Answer, Finish, GenerationRequest
from undersong_server.prompts.rendering import LIST_KINDS, MASK, QUOTE

FIRST_CHARACTERS = 300  # in which a refusal shows itself
_REACH = 90
_APOSTROPHES = str.maketrans({"’": "'", "ʼ": "'", "`": "'", "´": "'"})
_FLAGS = re.IGNORECASE | re.DOTALL

_FEWEST_WORDS = 6
_FEWEST_HITS = 3
_SCRIPTS = {
    "russian": r"[\u0400-\u04ff]",
    "ukrainian": r"[\u0400-\u04ff]",
    "bulgarian": r"[\u0400-\u04ff]",
    "greek": r"[\u0370-\u03ff]",
    "arabic": r"[\u0600-\u06ff]",
    "persian": r"[\u0600-\u06ff]",
    "hebrew": r"[\u0590-\u05ff]",
    "hindi": r"[\u0900-\u097f]",
    "thai": r"[\u0e00-\u0e7f]",
    "korean": r"[\uac00-\ud7af]",
    "japanese": r"[\u3040-\u30ff\u4e00-\u9fff]",
    "chinese": r"[\u4e00-\u9fff]",
}
_COMMON = {
    "english": "the and is to of in that it was for with my on have this not are be you at",
    "german": "der die das und ist nicht ich zu den mit ein eine es auf für hat dem von sich auch",
    "french": "le la les et est une des que pas je pour dans qui sur avec il du au ne ce",
    "spanish": "el la los que de y en una por con no es para las del se lo mi me su",
    "italian": "il di che la e un una per non sono è con del della mi ho le si nel più",
    "portuguese": "o que de e um uma não para com os do da em por se meu minha no na mais",
    "dutch": "de het een en van ik is niet dat op te zijn voor met die mijn aan er maar ook",
    "swedish": "och att det är jag en som på inte har för med den till av om ett mitt kan men",
    "danish": "og at det er jeg en som på ikke har for med den til af om et mit kan men",
    "polish": "i w nie na się że jest z do to jak po ale mam za co od moja mój tak",
    "czech": "a v se na že je s do to jak po ale mám za co od jsem jsou nebo při",
    "turkish": "ve bir bu için de da ile çok ne var ama gibi daha ben mi kadar olarak sonra benim değil",
}
_WORDS = {language: frozenset(words.split()) for language, words in _COMMON.items()}
_WORD = re.compile(r"[^\W\d_]+")


def is_refusal(text: str) -> bool:
    """Returns True if a model refuses, in its first words, to write.

    >>> is_refusal("I'm sorry, but I can't write that note."), is_refusal("I can't complete a transfer to my mother.")
    (True, False)
    """
    first = " ".join(text.split()).translate(_APOSTROPHES)[:FIRST_CHARACTERS]
    return any(pattern.search(first) for pattern in _patterns())


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    content = resources.files("undersong_server.generators").joinpath("refusals.toml").read_bytes()
    table: dict[str, dict[str, Any]] = tomllib.loads(content.decode("utf-8"))
    return tuple(pattern for language in table.values() for pattern in _of_language(language))


def _of_language(language: dict[str, Any]) -> list[re.Pattern[str]]:
    gap = rf"[^.!?\n]{{0,{language.get('reach', _REACH)}}}?"
    unable, act = language.get("lead", "") + _any(language["unable"]), _any(language["act"])
    if "object" in language:
        act = rf"\b{act}\b[^.!?\n]{{0,40}}?{_any(language['object'])}"
    found = [unable + gap + act, _any(language["plain"])]
    if language.get("before"):
        found.append(act + gap + unable)
    return [re.compile(pattern, _FLAGS) for pattern in found]


def _any(alternatives: list[str]) -> str:
    return f"(?:{'|'.join(alternatives)})"


# Languages: by the script of a text, and by its commonest words


def is_other_language(text: str, language: str) -> bool:
    """Returns True if the text is clearly not in ``language`` (its English name); False if that is not clear.

    >>> is_other_language("Ich habe die Karte verloren und das ist nicht gut.", "English")
    True
    """
    wanted = language.strip().casefold()
    letters = [letter for letter in text if letter.isalpha()]
    if not letters or (wanted not in _SCRIPTS and wanted not in _WORDS):
        return False
    script = _SCRIPTS.get(wanted)
    if script is not None:
        return len(re.findall(script, text)) < 0.3 * len(letters)
    if sum(any(re.match(other, letter) for other in set(_SCRIPTS.values())) for letter in letters) > 0.5 * len(letters):
        return True
    words = _WORD.findall(text.casefold())
    if len(words) < _FEWEST_WORDS:
        return False
    hits = {name: sum(word in common for word in words) for name, common in _WORDS.items()}
    most = max(hits.values())
    return most >= _FEWEST_HITS and most > 2 * hits[wanted]


REFUSED = "refused"
EMPTY = "empty"
CUT = "cut"
SEVERAL = "several texts"
ANALYSIS = "analysis"
PLACEHOLDER = "placeholder"
ECHO = "echo of the prompt"
NO_TEXT = "page or data"
REPEATED = "says one thing over and over"
OTHER_LANGUAGE = "wrong language"
NO_LIST = "no list"
FAILED = "failed"

REPEATED_SHARE = 0.4  # of its runs of three words that a text has had before; of 6 604 real texts, two have as many
FEWEST_WORDS = 12  # of a text that repetition is judged by
KEPT_SHARE = 0.6  # of a cut answer, that whole sentences must make up for it to be kept
_ECHOED_WORDS = 6  # of an instruction's line, that no text has by chance

_THING = (
    r"(?:text|note|message|example|review|question|query|sentence|paragraph|response|sample|record|version|answer|post)"
)
_ANALYSIS = re.compile(
    r"\A\W*(?:"
    + "|".join(
        (
            r"the user (?:wants|asks|is asking|asked|needs|would like|has asked|requested)\b",
            r"(?:okay|ok|alright|so|hmm|well)[,.]? (?:so )?(?:i|we|let me|let's|the user)\b[^.\n]{0,60}"
            rf"\b(?:{_THING}|write|analy[sz]e|examples?)\b",
            r"(?:we|i) (?:need|have|are asked|am asked|should|must|will|'ll|am going)(?: to)? "
            rf"(?:write|produce|create|generate|craft|come up with|analy[sz]e)\b[^.\n]{{0,50}}\b{_THING}",
            rf"(?:first|now),? (?:i|we|let me|let's)\b[^.\n]{{0,40}}\b(?:analy[sz]e|examples?|{_THING})\b",
            r"(?:let me|let us|let's) (?:think|analy[sz]e|start by|draft|craft|produce|consider)\b",
            r"(?:analysis|reasoning|thought process|my thoughts|step 1)\W*(?::|\n)",
            r"looking at the (?:good|bad|given|provided) ",
        )
    )
    + ")",
    re.IGNORECASE,
)
_SPOKEN_OF = re.compile(
    r"\b(?:the|these|those) (?:good|bad) (?:examples?|ones)\b"
    r"|\b(?:good|bad) examples (?:are|tend|differ|have|show|use|lack)\b"
    r"|\bnew text (?:should|must|will|needs)\b|\bgo(?:es|ing)? further in (?:the|that|this) direction\b",
    re.IGNORECASE,
)
_HEADED = re.compile(
    rf"^\W{{0,4}}(?:{_THING}|option|variation|alternative|draft)\s*(?:#|no\.?)?\s*(?:\d{{1,2}}|[a-c])\b\s*(?:\*\*)?\s*[.:)\-–]",
    re.IGNORECASE | re.MULTILINE,
)
_SEVERAL_ANNOUNCED = re.compile(
    r"\A\W*(?:\w+[,!.]?\s+)?(?:here are|below are|these are)\b[^\n:]{0,60}"
    rf"\b(?:{_THING}s|options|variations|alternatives|drafts|queries)\b[^\n:]{{0,80}}:",
    re.IGNORECASE,
)
_ITEM = re.compile(r"^[ \t]*(?:\(?\d{1,3}[.)]|[-*•–])[ \t]+(.*)$", re.MULTILINE)
_DIVIDER = re.compile(r"\n[ \t]*(?:-{3,}|\*{3,}|={3,}|#{3,}|_{3,})[ \t]*\n")
_WHO = (
    r"(?:patient|customer|client|user|doctor|physician|nurse|bank|company|product|movie|film|director|actor|actress|person|first|last|"
    r"full|city|country|hospital|account|card|order|merchant|store|shop|start|end|birth)"
)
_WHAT = (
    r"(?:name|title|date|time|age|number|amount|location|address|e-?mail|phone|city|country|details?|reason|text|here|company|bank|id|dob|"
    r"mrn|hospital|doctor|xx+)"
)
_PLACEHOLDER = re.compile(
    rf"\[\s*(?:insert\b[^\]\n]{{0,40}}|your\b[^\]\n]{{0,40}}|(?:the )?(?:{_WHO}(?:['’]s?)?[ _-]?){{0,2}}{_WHAT})\s*\]"
    rf"|\{{\{{?\s*(?:{_WHO}[ _]?)?{_WHAT}\s*\}}?\}}|<(?:{_WHO}[ _-]?)?(?:name|date|amount|number|address)>",
    re.IGNORECASE,
)
_PAGE = re.compile(r"\A\W*(?:<!doctype html|<html\b|<head\b|<\?xml\b)", re.IGNORECASE)
_TAG = re.compile(r"</?text>", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?…。！？؟][\"'”’)\]]*(?=\s|\Z)|[。！？]|\n")


LONGEST_WORDS = 8  # of an item; a longer one is a sentence, and left out
FEWEST_ITEMS = 3  # an answer with fewer is a text, not a list

_BETWEEN = re.compile(r"[,;\n]+")
_BULLET = re.compile(r"^\s*(?:\(?\d{1,3}[.)]|[-*•–])\s+(.*)$")
_INLINE_NUMBER = re.compile(r"^\s*(?:\(?\d{1,3}[.)]|[-*•–])\s*")
_EXPLAINED = re.compile(r"\s*(?::\s|\s[-–—]\s).*$")  # "Lost card: the customer ...", "Lost card - ..."
_PREAMBLE = re.compile(
    r"\A[^\n:]*\b(?:here|below|following|topics?|keywords?|names?|list|subjects?|kinds|situations|sure|certainly)\b[^\n:]*:\s*",
    re.IGNORECASE,
)
_JSON = re.compile(r"\[[^\[\]]*\]", re.DOTALL)
_MARKS = " .\"'`*_“”"


@dataclass(frozen=True)
class Reading:
    """The text of an answer, and its fault; "" if it is the text that was ordered."""

    text: str
    fault: str = ""


def read(
    answer: Answer | GenerationError, request: GenerationRequest, *, language: str = "", whole: bool = True
) -> Reading:
    """Reads an answer: the text that was ordered, or the kind of fault.

    Args:
        whole: True if a language model read the whole prompt. Its answer is then also at fault if it echoes the prompt,
            ended at its longest length (unless most of it is whole sentences), or is a text in place of a list.
        language: English name of the language of the task's texts ("German"); "" accepts any.
    """
    if isinstance(answer, GenerationError):
        return Reading("", FAILED)
    raw = answer.text if request.style == "chat" else _until_stop(answer.text, request.stop)
    if whole:
        return _read(raw, answer.finish, request, language)
    return _read_unprompted(raw, answer.finish, request.kind, language)


@lru_cache(maxsize=REMEMBERED)
def _read_unprompted(raw: str, finish: Finish, kind: str, language: str) -> Reading:
    """Reads an answer of a generator that reads no prompt: the result depends on nothing else.

    It is kept, because a file of texts gives the same answers in every run of a comparison.
    """
    return _read(raw, finish, GenerationRequest(kind, "", "", 0), language, whole=False)


def _read(raw: str, finish: Finish, request: GenerationRequest, language: str, *, whole: bool = True) -> Reading:
    if finish in ("refusal", "filter"):
        return Reading(raw.strip(), REFUSED)
    if is_empty(_TAG.sub("", raw)):
        return Reading("", CUT if finish == "length" else EMPTY)
    if QUOTE in request.stop and raw[-1:].isspace() and finish != "length":
        return Reading(raw.strip(), CUT)  # the quotation mark that ended it opened a quotation inside the text
    raw = _unpacked(raw)
    text = clean(raw, prompt=request.prompt)
    if request.kind in LIST_KINDS:
        return Reading(raw.strip(), REFUSED if is_refusal(text) else NO_LIST if whole and not listed(raw) else "")
    if fault := _fault(raw, text, request, language):
        return Reading(text, fault)
    if whole and is_repetitive(text):
        return Reading(text, REPEATED)
    if whole and finish == "length" and request.is_long:
        return Reading(text, CUT)  # the end of a document says how it came out
    if whole and finish == "length":
        sentences = whole_sentences(text)
        return Reading(sentences) if len(sentences) >= KEPT_SHARE * len(text) else Reading(text, CUT)
    return Reading(text)


def _fault(raw: str, text: str, request: GenerationRequest, language: str) -> str:
    """Returns the fault of an answer and of the text that was found in it; "" for none."""
    if _is_page(raw):
        return NO_TEXT
    if not text:
        return EMPTY
    if is_refusal(text):
        return REFUSED
    if _is_several(raw, text, sections=request.is_long):
        return SEVERAL
    if _ANALYSIS.match(text) or _SPOKEN_OF.search(text):
        return ANALYSIS
    if _is_echo(text, request):
        return ECHO
    if _PLACEHOLDER.search(text) or (request.kind == "fill_in" and MASK in text.split()):
        return PLACEHOLDER
    return OTHER_LANGUAGE if language and is_other_language(text, language) else ""


def is_repetitive(text: str) -> bool:
    """Returns True if most of a text repeats earlier parts of it.

    >>> is_repetitive("I lost my card. How do I get it? " * 3)
    True
    """
    words = duplicate_key(text).split()
    if len(words) < FEWEST_WORDS:
        return False
    runs = list(zip(words, words[1:], words[2:], strict=False))
    return len(runs) - len(set(runs)) >= REPEATED_SHARE * len(runs)


def whole_sentences(text: str) -> str:
    """Returns the text up to the end of its last sentence; "" if it has none.

    >>> whole_sentences("It hurts. Since Monday. And the le")
    'It hurts. Since Monday.'
    """
    ends = [found.end() for found in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]].strip() if ends else ""


def _until_stop(text: str, stop: tuple[str, ...]) -> str:
    """Cuts a continuation at the first of its stops, which not every server obeys, after leading line breaks."""
    text = text.lstrip()
    return text[: min((place for mark in stop if (place := text.find(mark)) >= 0), default=len(text))]


def _unpacked(raw: str) -> str:
    """Returns the only string of a JSON object, which some models answer with; anything else unchanged."""
    inside = raw.strip().removeprefix("```json").removesuffix("```").strip()
    if not inside.startswith("{"):
        return raw
    try:
        value = json.loads(inside)
    except ValueError:
        return raw
    return next(iter(value.values())) if len(value) == 1 and all(isinstance(v, str) for v in value.values()) else raw


def _is_page(raw: str) -> bool:
    start = raw.strip().removeprefix("```json").strip()
    return bool(_PAGE.match(raw)) or bool(re.match(r'\{\s*"|\[\s*[{"]', start))


def _is_several(raw: str, text: str, *, sections: bool) -> bool:
    """Returns True if an answer holds several texts; lines between ``sections`` of one text divide none."""
    if len(tagged_texts(raw)) > 1 or len(_HEADED.findall(text)) > 1:
        return True
    parts = [part for part in _DIVIDER.split(text) if not is_empty(part)]
    if len(parts) > 1 and not sections:
        return True
    items = [item.strip() for item in _ITEM.findall(text)]
    if len(items) < 2:
        return False
    return bool(_SEVERAL_ANNOUNCED.match(raw)) or all(item.endswith("?") or item[:1] in '"“«' for item in items)


def _is_echo(text: str, request: GenerationRequest) -> bool:
    """Returns True if the text has a whole line of the instructions that is not an example's."""
    if "<text>" in text or "</text>" in text:
        return True
    shown = " ".join(duplicate_key(each) for each in (*request.good, *request.bad, *request.parents))
    key = f" {duplicate_key(text)} "
    return any(
        len(line.split()) >= _ECHOED_WORDS and f" {line} " in key and line not in shown
        for line in map(duplicate_key, f"{request.system}\n{request.prompt}".splitlines())
    )


# Lists: JSON, numbered or bulleted lines, or names with commas between them


def listed(answer: str) -> list[str]:
    """Returns the items of a list that an answer holds, in its order; an empty list if it is a text.

    >>> listed("Here are some:\\n1. **Lost card** - gone\\n2. Stolen card\\n3. Computer vision for medical diagnostics")
    ['Lost card', 'Stolen card', 'Computer vision for medical diagnostics']
    """
    found = _from_json(answer)
    if not found:
        lines = [match[1] for line in answer.splitlines() if (match := _BULLET.match(line))]
        if len(lines) >= FEWEST_ITEMS:
            found = [_EXPLAINED.sub("", line.replace("**", "")) for line in lines]
        else:
            found = [_INLINE_NUMBER.sub("", item) for item in _BETWEEN.split(_PREAMBLE.sub("", answer.strip()))]
    items = [item for each in found if (item := each.strip(_MARKS)) and re.search(r"[^\W\d_]", item)]
    short = [item for item in items if len(item.split()) <= LONGEST_WORDS]
    # Of a text with commas, most parts are too long for items or begin as clauses do; a list may have one such part.
    return short if len(short) >= FEWEST_ITEMS and len(short) > 0.6 * len(items) else []


def _from_json(answer: str) -> list[str]:
    for match in _JSON.finditer(answer):
        try:
            values = json.loads(match[0])
        except ValueError:
            continue
        if values and all(isinstance(value, str) for value in values):
            return list(values)
    return []
