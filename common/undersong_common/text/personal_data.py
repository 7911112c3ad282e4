"""Finds names, numbers and dates in texts, offline, with Presidio's recognisers (the extra ``presidio``).

Presidio takes names and written dates from a spaCy model. Such a model is used where one is installed as a package
(``en_core_web_*``); without it a blank pipeline splits words only, names are found after a title alone ("Dr Jane
Brown") and dates in digits. Nothing is downloaded: recognisers that look up internet domains at run time are replaced
by their patterns.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_SCORE = 0.35  # Presidio's own threshold in its examples; bare digits score below it
KINDS = {"PERSON": "names", "DATE_TIME": "dates"}  # kind for each of Presidio's entities; any other is a number
NUMBERS = "numbers"
LEFT_OUT = frozenset({"LOCATION", "NRP", "ORGANIZATION", "URL"})  # Presidio's entities that are none of the three kinds
TITLED = r"\b(?:Mr|Mrs|Ms|Miss|Dr|Prof|Sr|Sister|Nurse)\.? (?-i:[A-Z][a-z'’-]+)(?: (?-i:[A-Z][a-z'’-]+))?\b"
FEWEST_DIGITS = 7  # digits of a telephone number; a blood pressure (168/101) has six
# A spaCy model takes "this morning", "51 year old", blood pressures and telephone numbers for dates too.
CALENDAR = re.compile(
    r"\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\b|\b(?:19|20)\d\d\b|\d[./-]\d\d?[./-]\d",
    re.IGNORECASE,
)
MODELS = tuple(f"en_core_web_{size}" for size in ("lg", "md", "sm"))  # the best that is installed is used
_TITLED = re.compile(f"(?i:{TITLED})")
_LONG_NUMBER = re.compile(r"\+?\d(?:[ ./-]?\d)+")
WITHOUT_MODEL = "without a spaCy model: names after a title only, dates in digits only"

Find = Callable[[str], Iterable[tuple[str, str]]]


@dataclass(frozen=True)
class PersonalData:
    """Names, numbers and dates that were found in the synthetic texts.

    Attributes:
        rows: texts examined.
        found: occurrences by kind: "names", "numbers" (telephone, account, insurance, card numbers and addresses of
            mail and computers), "dates".
        different: number of different values by kind.
        in_private: number of those that also occur in the private file, by kind; None without such a file.
        private_rows: rows of the synthetic file, from 1, with a value that also occurs in the private file.
        finder: name of the program that searched, as people read it.
    """

    rows: int
    found: dict[str, int]
    different: dict[str, int]
    in_private: dict[str, int] | None
    private_rows: tuple[int, ...]
    finder: str


def count_personal_data(texts: Sequence[str], private: Sequence[str] | None, find: Find, finder: str) -> PersonalData:
    """Counts the personal data that ``find`` finds in the texts, and its values that occur in the private texts too.

    Args:
        find: returns the (kind, value) pairs in a text; :func:`presidio` returns such a function.
        finder: name of that function for the report.
    """
    count_by_kind: Counter[str] = Counter()
    rows_by_finding: dict[tuple[str, str], list[int]] = {}
    for row_number, text in enumerate(texts, start=1):
        for kind, found_value in find(text):
            count_by_kind[kind] += 1
            rows_by_finding.setdefault((kind, _normalise_text(found_value)), []).append(row_number)
    kinds = (*KINDS.values(), NUMBERS)
    private_findings: list[tuple[str, str]] = []
    if private is not None:
        private_text = "\n".join(map(_normalise_text, private))
        private_findings = [
            finding
            for finding in rows_by_finding
            if finding[1] in private_text and re.search(rf"(?<!\w){re.escape(finding[1])}(?!\w)", private_text)
        ]
    value_counts = Counter(kind for kind, _ in rows_by_finding)
    private_kinds = Counter(kind for kind, _ in private_findings)
    return PersonalData(
        rows=len(texts),
        found={kind: count_by_kind[kind] for kind in kinds},
        different={kind: value_counts[kind] for kind in kinds},
        in_private=None if private is None else {kind: private_kinds[kind] for kind in kinds},
        private_rows=tuple(
            sorted({row_number for finding in private_findings for row_number in rows_by_finding[finding]})
        ),
        finder=finder,
    )


def patterns(text: str) -> Iterable[tuple[str, str]]:
    """Yields (kind, value) of names after a title and of numbers of seven digits or more, without further packages.

    >>> list(patterns("Dr Jane Brown, 030 1234567, 168/101"))
    [('names', 'Dr Jane Brown'), ('numbers', '030 1234567')]
    """
    yield from (("names", match.group()) for match in _TITLED.finditer(text))
    for match in _LONG_NUMBER.finditer(text):
        if sum(map(str.isdigit, match.group())) >= FEWEST_DIGITS:
            yield NUMBERS, match.group()


def _normalise_text(text: str) -> str:
    return " ".join(text.casefold().split())


def presidio() -> tuple[Find, str]:
    """Returns a ``find`` function with Presidio's recognisers for English, and its name for reports.

    Raises ModuleNotFoundError if presidio-analyzer is not installed (``undersong_common.program.extras``).
    """
    from presidio_analyzer import AnalyzerEngine, Pattern, PatternRecognizer, RecognizerRegistry
    from presidio_analyzer.nlp_engine import SpacyNlpEngine
    from presidio_analyzer.predefined_recognizers import EmailRecognizer
    from spacy import blank, util

    installed_models = set(util.get_installed_models())
    model = next((model_name for model_name in MODELS if model_name in installed_models), "")
    nlp_engine = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": model or "blank"}])
    if model:
        nlp_engine.load()
    else:
        nlp_engine.nlp = {"en": blank("en")}
    registry = RecognizerRegistry(supported_languages=["en"])
    registry.load_predefined_recognizers(languages=["en"], nlp_engine=nlp_engine if model else None)
    for recognizer_name in ("EmailRecognizer", "UrlRecognizer"):  # the first fetches a list of internet domains
        registry.remove_recognizer(recognizer_name)
    registry.add_recognizer(
        PatternRecognizer(supported_entity="EMAIL_ADDRESS", name="e-mail", patterns=EmailRecognizer.PATTERNS)
    )
    registry.add_recognizer(
        PatternRecognizer(supported_entity="PERSON", name="titled", patterns=[Pattern("title", TITLED, 0.6)])
    )
    analyzer = AnalyzerEngine(registry=registry, nlp_engine=nlp_engine, supported_languages=["en"])

    def find(text: str) -> list[tuple[str, str]]:
        results = analyzer.analyze(text, language="en", score_threshold=LEAST_SCORE)
        return [(kind, text[place_start:place_end]) for kind, place_start, place_end in _separate_places(results, text)]

    with_model = f"with the spaCy model {model}" if model else WITHOUT_MODEL
    return find, f"Presidio's recognisers for English, {with_model}"


def _separate_places(results: Iterable[Any], text: str) -> list[tuple[str, int, int]]:
    """Returns (kind, start, end) of the findings, by start. Of overlapping ones the surest, then the longest, stays."""
    separate_findings: list[tuple[str, int, int]] = []
    for finding in sorted(results, key=lambda r: (-r.score, r.start - r.end, r.start)):
        kind = KINDS.get(finding.entity_type, NUMBERS)
        if finding.entity_type in LEFT_OUT or any(
            finding.start < other_end and other_start < finding.end for _, other_start, other_end in separate_findings
        ):
            continue
        if _is_personal(finding.entity_type, text[finding.start : finding.end]):
            separate_findings.append((kind, finding.start, finding.end))
    return sorted(separate_findings, key=lambda finding_place: finding_place[1])


def _is_personal(entity: str, value: str) -> bool:
    """Returns True unless a value is a figure of a note that Presidio mistakes for a date or a telephone number."""
    if entity == "DATE_TIME":
        return CALENDAR.search(value) is not None
    return entity != "PHONE_NUMBER" or sum(map(str.isdigit, value)) >= FEWEST_DIGITS
