"""Reads answers: an answer is the text that was ordered, a list of names, or has one of the faults below.

A text may be in any language. A fault that only English phrases would show is found by punctuation of any script; if
that shows nothing either, the text is ordered again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from undersong_common.errors import GenerationError
from undersong_server.generators.cleaning import (
    REMEMBERED,
    TAG,
    clean,
    closes_more_tags,
    data_strings,
    duplicate_key,
    is_empty,
    phrases,
    tags_end,
    title_words,
    unpacked,
)
from undersong_server.generators.interface import Completion, End, GenerationRequest
from undersong_server.generators.languages import is_other_language, is_refusal
from undersong_server.prompts.rendering import LIST_KINDS, MASK, QUOTE, VOCABULARY
from undersong_server.prompts.scripts import COLONS, ITEM, NUMBER, SENTENCE_END, SEPARATORS, WIDE_COLONS

REFUSED = "refused"
EMPTY = "empty"
CUT = "cut"
SEVERAL = "several texts"
ANALYSIS = "analysis"
PLACEHOLDER = "placeholder"
ECHO = "echo of the prompt"
NO_TEXT = "page or data"
UNMARKED = "not told from what surrounds it"
UNREADABLE = "unreadable characters"
REPEATED = "says one thing over and over"
OTHER_LANGUAGE = "wrong language"
NO_LIST = "no list"
TOO_LONG = "longer than it was allowed to be"
FAILED = "failed"
MISSED_LENGTH = "another length than ordered"

REPEATED_SHARE = 0.4  # share of a text's runs of three words that occur twice; two of 6 604 real texts have as many
FEWEST_WORDS = 12  # shorter texts are not judged by repetition
LENGTH_SLACK = 0.5  # share of an ordered length by which a text may miss it
LEAST_SLACK = 3  # words
KEPT_SHARE = 0.6  # share of a cut answer that whole sentences must cover for it to be kept
TOLD_SHARE = 0.5  # share of a text's words; above it the task's own description is an echo
_ECHOED_WORDS = 7  # words of an instruction in a row that no text has by chance

# A line that begins with one word and a number: "Note 2:", "Beispiel b)", "第二条："
_HEADED = re.compile(
    rf"^\W{{0,4}}(?:([^\W\d_]+)\s*(?:#|no\.?)?\s*(?:\d{{1,2}}|[a-c])\b|第[\d一二三四五六七八九十]+\w?)\W{{0,3}}[.){COLONS}–-]",
    re.IGNORECASE | re.MULTILINE,
)
_NUMBERED, _LISTED = (re.compile(rf"^[ \t]*{mark}[ \t]*(.*)$", re.MULTILINE) for mark in (NUMBER, ITEM))
# Numbered lines alone, or below a heading: a note that numbers its plan says something before it
_NUMBERED_ALONE = re.compile(rf"(?:[^\n\d.,;!?]{{1,80}}[{COLONS}][ \t]*\n+)?(?:[ \t]*{NUMBER}[^\n]*(?:\n+|\Z)){{2,}}")
_DIVIDER = re.compile(r"\n[ \t]*(?:-{3,}|\*{3,}|={3,}|#{3,}|_{3,})[ \t]*\n")


# A line that begins with up to three words and a colon: "Customer:", "Customer's question:", "質問："
_TITLED = re.compile(
    rf"^\W{{0,3}}([^\W\d_]+(?:['’]s?)?(?: [^\W\d_]+){{0,2}})\**\s*(?:[{COLONS}]\**(?=\s)|[{WIDE_COLONS}]\**)",
    re.MULTILINE,
)
_UNSPACED_FROM = "\u2e80"  # Scripts from here on write no spaces between words.
_ARTICLE_LETTERS = 4  # A first word of a description that has no more is taken for its article.
_OWNER = re.compile(r"\b([^\W\d_]{2,}?)(?:['’]s|s['’])(?!\w)")  # "a customer's question", "customers' questions"

LONGEST_WORDS = 8  # words of an item; a longer one is a sentence and is left out
FEWEST_ITEMS = 3  # an answer with fewer is a text, not a list

_BETWEEN = re.compile(rf"[{SEPARATORS}]+")
_EXPLAINED = re.compile(r"\s*(?::\s|\s[-–—]\s).*$")  # "Lost card: the customer ...", "Lost card - ..."
_PREAMBLE = re.compile(rf"\A[^\n{COLONS}]{{0,200}}[{COLONS}][ \t]*(?=\n|[^{COLONS}]*\Z)")
_JSON = re.compile(r"[\[{].*[\]}]", re.DOTALL)
_MARKS = " .。।\"'`*_“”«»「」"


@dataclass(frozen=True)
class ReadText:
    """The text of an answer, and its fault; "" if it is the text that was ordered."""

    text: str
    fault: str = ""


def read(
    answer: Completion | GenerationError,
    request: GenerationRequest,
    *,
    language: str = "",
    line_breaks: bool = True,
    whole: bool = True,
) -> ReadText:
    """Reads an answer: the text that was ordered, or the kind of fault.

    Args:
        language: English name of the language of the task's texts ("German"); "" accepts any.
        line_breaks: texts may have several lines.
        whole: True if a language model read the whole prompt. Its answer is then also at fault if it echoes the prompt,
            is cut (unless most of it is whole sentences), leaves gaps, or is a text in place of a list.
    """
    if isinstance(answer, GenerationError):
        return ReadText("", FAILED)
    if not whole:
        return _read_unprompted(answer.text, answer.end, request.kind, language)
    if request.style == "chat":
        raw = answer.text
    else:
        raw = _until_stop(answer.text, request.stop)
    if request.style == "completion" and request.bounded and request.words:
        raw = until_length(raw, request.words)
    end = answer.end
    if raw not in (answer.text, answer.text.lstrip()):
        end = "good"  # The text has a stop that the server did not obey.
    return _read_text(raw, end, request, language, line_breaks=line_breaks)


@lru_cache(maxsize=REMEMBERED)
def _read_unprompted(raw: str, end: End, kind: str, language: str) -> ReadText:
    """Reads an answer of a generator that reads no prompt: the result depends on nothing else.

    It is kept, because a file of texts gives the same answers in every run of a comparison.
    """
    return _read_text(raw, end, GenerationRequest(kind, "", "", 0), language, whole=False)


def _read_text(
    raw: str, end: End, request: GenerationRequest, language: str, *, line_breaks: bool = True, whole: bool = True
) -> ReadText:
    if end == "filtered":
        return ReadText(raw.strip(), REFUSED)
    if end == "overlong":
        return ReadText("", TOO_LONG)
    # The last character of a cut answer may be cut, too.
    answer, tagged, text_or_data = clean(raw.rstrip("\ufffd") if end == "cut" else raw, prompt=request.prompt)
    if is_empty(TAG.sub("", answer)):
        return ReadText("", EMPTY if end == "good" else CUT)
    if QUOTE in request.stop and raw[-1:].isspace() and end != "cut":
        return ReadText(answer, CUT)  # the quotation mark that ended it opened a quotation inside the text
    if request.kind in LIST_KINDS:
        is_list = not whole or request.kind == VOCABULARY or listed(answer)  # any text has a vocabulary
        return ReadText(answer, REFUSED if is_refusal(text_or_data) else "" if is_list else NO_LIST)
    text = without_title(unpacked(text_or_data, tagged=bool(tagged)), request.told)
    is_asked = request.style == "chat" and "<text>" in request.prompt
    is_marked = bool(tagged) or text != text_or_data
    are_listed = not line_breaks and (_NUMBERED_ALONE.fullmatch(text) or _are_headed(text))
    fault = (
        _text_fault(text, text_or_data, language)
        or (SEVERAL if len(tagged) > 1 or are_listed else "")
        # One of the closing tags is a word of the text, and nobody knows which.
        or (UNMARKED if tagged and closes_more_tags(answer) else "")
        or ("" if is_marked else _unmarked_fault(text, request, line_breaks=line_breaks, is_asked=is_asked))
    )
    if fault:
        return ReadText(text, fault)
    if not whole or (fault := _prompted_fault(text, request)):
        return ReadText(text, fault if whole else "")
    if tags_end(answer) + (end == "good") > 0:
        return ReadText(text)
    sentences = whole_sentences(text)
    # A long document without its end lacks its conclusion, and an answer without tags may have ended before its text.
    is_kept = (
        (is_marked or not is_asked)
        and end != "unknown"
        and not request.is_long
        and len(sentences) >= KEPT_SHARE * len(text)
    )
    if is_kept:
        return ReadText(sentences)
    return ReadText(text, CUT)


def _text_fault(text: str, text_or_data: str, language: str) -> str:
    """Returns the fault of a text by itself; "" for none. ``text_or_data`` is the text, or data that holds it."""
    is_there_by_fault = {
        NO_TEXT: not text and bool(text_or_data),
        EMPTY: not text,
        REFUSED: is_refusal(text),
        ANALYSIS: bool(phrases("beginnings").match(text.lstrip("*#> \"'")) or phrases("anywhere").search(text)),
        UNREADABLE: "\ufffd" in text,
        OTHER_LANGUAGE: bool(language) and is_other_language(text, language),
    }
    return next((fault for fault, is_there in is_there_by_fault.items() if is_there), "")


def without_title(text: str, told: Sequence[str]) -> str:
    """Returns the text without a heading that names who writes it or the kind of text, where the task says these.

    A real text of a customer does not begin with "Customer:" or "Question:". It stays where other lines begin so too: a
    dialogue. A heading that the task does not tell ("Note:", "User:") is the text's own.

    Args:
        told: what the prompt says that a text may say too; first the task's description.

    >>> without_title("Customer: where is my card?", ("a customer's question",))
    'where is my card?'
    >>> without_title("Question: where is my card?", ("a customer's question",))
    'where is my card?'
    """
    title_matches = list(_TITLED.finditer(text))
    if len(title_matches) != 1 or text[: title_matches[0].start()].strip():
        return text
    task_words = " ".join(told).casefold()
    owners = set(_OWNER.findall(task_words))
    heading = re.sub(r"['’]s?(?!\w)", "", title_matches[0][1].casefold()).split()
    is_writer = heading[0] in owners and set(heading[1:]) <= set(re.findall(r"[^\W\d_]+", task_words))
    if is_writer or _names_kind(heading, told[0].casefold() if told else ""):
        return text[title_matches[0].end() :].strip()
    return text


def _names_kind(heading: Sequence[str], description: str) -> bool:
    """Returns True if the words of a heading only name the kind of text that the description asks for.

    "Question", "Customer question" and "Question du client" do of a customer's question. "A question" and "My question"
    are how a person begins, and "Note" alone may say "mind this".
    """
    kind_words = [word for word in (heading[0], heading[-1]) if _is_kind(word, description)]
    if not kind_words or (len(heading) == 1 and heading[0] in title_words("never_alone")):
        return False
    words = re.findall(r"[^\W\d_]+", description)
    articles = {words[0]} if len(words[0]) <= _ARTICLE_LETTERS else set()
    return set(heading) <= ({*words, *title_words("beside")} - articles) | {kind_words[0]}


def _is_kind(word: str, description: str) -> bool:
    """Returns True if a word, or the end of a compound word, is a kind of text and the description has that word."""
    if not word.endswith(title_words("kinds")):
        return False
    if word >= _UNSPACED_FROM:
        return word in description
    return re.search(rf"{re.escape(word)}(?!\w)", description) is not None


def _unmarked_fault(text: str, request: GenerationRequest, *, line_breaks: bool, is_asked: bool) -> str:
    """Returns the fault of an answer without tags that holds more than one text; "" for none.

    If tags were asked for (``is_asked``), listed items are several texts, and what stands in a block of its own before
    or after the text cannot be told from it. Lines between the sections of a long text divide none.
    """
    items = [item.strip() for item in (_LISTED if is_asked else _NUMBERED).findall(text)]
    are_texts = is_asked or all(item.endswith("?") or item[:1] in '"“«' for item in items)
    if (len(items) > 1 and are_texts) or _are_headed(text) or (_DIVIDER.search(text) and not request.is_long):
        return SEVERAL
    blocks = text.split("\n\n" if line_breaks else "\n")
    is_apart = len(blocks) > 1 and not (line_breaks and "\n" in blocks[-1])
    is_named = duplicate_key(re.split(f"[{COLONS}]", text)[0]) == duplicate_key(request.label)
    if is_asked and (is_apart or is_named or phrases("announcements").match(text)):
        return UNMARKED
    return ""


def _are_headed(text: str) -> bool:
    """Returns True if several lines begin with the same word and a number."""
    words = [word.casefold() for word in _HEADED.findall(text)]
    return len(words) > len(set(words))


def _prompted_fault(text: str, request: GenerationRequest) -> str:
    """Returns the fault of a text that only a reader of the prompt can make; "" for none."""
    has_gap = phrases("placeholders").search(text) or (request.kind == "fill_in" and MASK in text.split())
    if _is_echo(text, request):
        return ECHO
    if has_gap:
        return PLACEHOLDER
    if is_repetitive(text):
        return REPEATED
    return ""


def is_repetitive(text: str) -> bool:
    """Returns True if most of a text repeats earlier parts of it.

    >>> is_repetitive("I lost my card. How do I get it? " * 3)
    True
    """
    words = duplicate_key(text).split()
    runs = _word_runs(words, 3)
    return len(words) >= FEWEST_WORDS and len(runs) - len(set(runs)) >= REPEATED_SHARE * len(runs)


def whole_sentences(text: str) -> str:
    """Returns the text up to the end of its last sentence; "" if it has none.

    >>> whole_sentences("It hurts. Since Monday. And the le")
    'It hurts. Since Monday.'
    """
    ends = [sentence_end.end() for sentence_end in SENTENCE_END.finditer(text)]
    if ends:
        return text[: ends[-1]].strip()
    return ""


def until_length(text: str, word_count: int) -> str:
    """Returns the text up to the end of the sentence that reaches ``word_count``, which a base model does not count.

    >>> until_length("It hurts. Since Monday, I think. And so on. And on.", 6)
    'It hurts. Since Monday, I think.'
    """
    ends = (sentence_end.end() for sentence_end in SENTENCE_END.finditer(text))
    end = next((end for end in ends if len(text[:end].split()) >= word_count), len(text))
    if text[end:].strip():
        return text[:end].rstrip()
    return text


def misses_length(text: str, request: GenerationRequest) -> bool:
    """Returns True if the text is much shorter or longer than its request wants, and the request is ``bounded``.

    >>> misses_length("a b c d e f", GenerationRequest("zero_shot", "", "", 0, words=3, bounded=True))
    False
    >>> misses_length("a b c d e f g", GenerationRequest("zero_shot", "", "", 0, words=3, bounded=True))
    True
    """
    if not request.bounded or request.words is None:
        return False
    return abs(len(text.split()) - request.words) > max(LEAST_SLACK, LENGTH_SLACK * request.words)


def _until_stop(text: str, stop: tuple[str, ...]) -> str:
    """Cuts a continuation at the first of its stops, which not every server obeys, after leading line breaks."""
    text = text.lstrip()
    return text[: min((position for mark in stop if (position := text.find(mark)) >= 0), default=len(text))]


def _is_echo(text: str, request: GenerationRequest) -> bool:
    """Returns True if the text is its label, or has words of the instructions in a row that are not the text's own.

    Weak models speak of their task in its words, or answer with the hints of their prompt. A good text may have the
    words of an example, and in a smaller part of it those that say what texts are wanted.
    """
    text_words = duplicate_key(text).split()
    run_length = _ECHOED_WORDS * (2 if request.is_long else 1)  # a document may well have its description as a title
    shown_texts = " ".join(
        duplicate_key(example) for example in (*request.good, *request.bad, *request.parents, *request.terms)
    )
    repeatable_runs, instruction_runs = (
        {run for line in lines for run in _word_runs(duplicate_key(line).split(), run_length)}
        for lines in (request.told, f"{request.system}\n{request.prompt}".splitlines())
    )
    echoes = [
        (start, run)
        for start, run in enumerate(_word_runs(text_words, run_length))
        if (run in repeatable_runs or run in instruction_runs) and " ".join(run) not in shown_texts
    ]
    # Positions of the words that repeat the task's own.
    echoed_positions = {position for start, _ in echoes for position in range(start, start + run_length)}
    return (
        bool(TAG.search(text))
        or any(run not in repeatable_runs for _, run in echoes)
        or len(echoed_positions) > TOLD_SHARE * len(text_words)
        or text_words == duplicate_key(request.label).split()
    )


def _word_runs(words: Sequence[str], run_length: int) -> list[tuple[str, ...]]:
    """Returns every run of ``run_length`` words in a row."""
    return list(zip(*(words[run_start:] for run_start in range(run_length)), strict=False))


# Lists: JSON, numbered or bulleted lines, or names with commas between them


def listed(answer: str) -> list[str]:
    """Returns the items of a list that an answer holds, in its order; an empty list if it is a text.

    >>> listed("Here are some:\\n1. **Lost card** - gone\\n2. Stolen card\\n3. Computer vision for medical diagnostics")
    ['Lost card', 'Stolen card', 'Computer vision for medical diagnostics']
    """
    json_match = _JSON.search(answer)
    lines = [_EXPLAINED.sub("", line.replace("**", "")) for line in _LISTED.findall(answer)]
    parts = (
        (data_strings(json_match[0]) if json_match else [])
        or (lines if len(lines) >= FEWEST_ITEMS else [])
        or [re.sub(rf"\A{ITEM}", "", item) for item in _BETWEEN.split(_PREAMBLE.sub("", answer.strip()))]
    )
    items = [item for part in parts if (item := part.strip(_MARKS)) and re.search(r"[^\W\d_]", item)]
    short_items = [item for item in items if len(item.split()) <= LONGEST_WORDS and not set(item) & set("。！？｡")]
    # Most parts of a text with commas are too long for items or begin like clauses. A list may have one such part.
    if len(short_items) >= FEWEST_ITEMS and len(short_items) > 0.6 * len(items):
        return short_items
    return []
