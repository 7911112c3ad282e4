"""Languages: how models refuse in each, and which one a text is in.

Refusals are recognised in the languages of ``refusals.toml``, by their first words. One clause of these says that the
writer cannot or will not do what only a model is asked for: write such a text, or help with this request. A customer
who "can't complete a transfer", and a nurse who is "unable to complete the exam", say the former and not the latter.
Texts in another language than the task's are recognised, too.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

FIRST_CHARACTERS = 300  # characters at the beginning of an answer in which a refusal is looked for
_APOSTROPHES = str.maketrans({"’": "'", "ʼ": "'", "`": "'", "´": "'"})
_QUOTED = re.compile(r'\A["“„«][^"“”„«»]{1,200}["”“»],?(?=\s\w)')
# A comma ends a clause, but not before a German infinitive: "nicht in der Lage, dies zu schreiben"
_CLAUSE_END = re.compile(r"[.!?…;:।؟。！？；：，、،؛–—]|,(?![^,.;:!?]{0,80}\b(?:zu|\w*zu\w{4,}en)\b)")
_ASIDE = re.compile(r", [^,.!?]{1,30},")  # "I cannot, in good conscience, write this"

_FEWEST_WORDS = 6
_FEWEST_HITS = 3  # different common words of another language in a text of that language
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
# Words that a language has too, though they are not among its commonest: "no fever, no rash" is English.
_ALSO = {"english": "do men mi no van"}
_WORDS = {language: frozenset(words.split()) for language, words in _COMMON.items()}
_OWN_WORDS = {language: words.union(_ALSO.get(language, "").split()) for language, words in _WORDS.items()}
_WORD = re.compile(r"[^\W\d_]+")


def is_refusal(text: str) -> bool:
    """Returns True if a model refuses, in its first words, to write.

    >>> is_refusal("I'm sorry, but I can't write that note."), is_refusal("I can't complete a transfer to my mother.")
    (True, False)
    """
    # Somebody who is quoted first, in a text that goes on, is not the writer.
    unquoted_text = _QUOTED.sub("", " ".join(text.split()))
    first_words = unquoted_text.translate(_APOSTROPHES)[:FIRST_CHARACTERS]
    clauses = {
        clause.strip() for words in (first_words, _ASIDE.sub("", first_words)) for clause in _CLAUSE_END.split(words)
    }
    return any(
        patterns["plain"].search(first_words)
        or (patterns["unable"].search(first_words) and any(_is_refusing(clause, patterns) for clause in clauses))
        for patterns in _compile_refusals()
    )


def _is_refusing(clause: str, patterns: Mapping[str, re.Pattern[str]]) -> bool:
    """Returns True if a clause says that its writer cannot write a text, or not serve a request."""
    matching_parts = {part for part, pattern in patterns.items() if pattern.search(clause)}
    return (
        "unable" in matching_parts
        and "own" not in matching_parts
        and ({"write", "text"} <= matching_parts or {"serve", "request"} <= matching_parts)
    )


@cache
def _compile_refusals() -> tuple[Mapping[str, re.Pattern[str]], ...]:
    toml_text = resources.files("undersong_server.generators").joinpath("refusals.toml").read_text("utf-8")
    return tuple(
        {
            part: re.compile(f"{lead if part == 'unable' else ''}(?:{'|'.join(words)})", re.IGNORECASE)
            for part, words in language.items()
        }
        for language in tomllib.loads(toml_text).values()
        for lead in [language.pop("lead", "")]
    )


# The function below judges the language of a text by its script and its commonest words.


def is_other_language(text: str, language: str) -> bool:
    """Returns True if the text is clearly not in ``language`` (its English name); False if that is not clear.

    >>> is_other_language("Ich habe die Karte verloren und das ist nicht gut.", "English")
    True
    """
    wanted_language = language.strip().casefold()
    letters = [letter for letter in text if letter.isalpha()]
    if not letters or (wanted_language not in _SCRIPTS and wanted_language not in _WORDS):
        return False
    script = _SCRIPTS.get(wanted_language)
    if script is not None:
        return len(re.findall(script, text)) < 0.3 * len(letters)
    if sum(
        any(re.match(script_pattern, letter) for script_pattern in set(_SCRIPTS.values())) for letter in letters
    ) > 0.5 * len(letters):
        return True
    words = _WORD.findall(text.casefold())
    if len(words) < _FEWEST_WORDS:
        return False
    different_words = set(words)
    # Single letters are abbreviations in notes ("c/o", "w mum"), and one word that recurs is one sign.
    foreign_words = {word for word in different_words if len(word) > 1} - _OWN_WORDS[wanted_language]
    most_hits = max(len(foreign_words & common) for common in _WORDS.values())
    return most_hits >= _FEWEST_HITS and most_hits > 2 * len(different_words & _WORDS[wanted_language])
